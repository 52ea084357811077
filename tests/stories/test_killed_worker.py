"""The worker process is killed in the middle: the request ends with a named error, and restarts."""

import os
import signal
import time
from collections.abc import Callable

import pytest
import torch
from small_engine import MAX_TOKENS, Engine, Request
from stories.oracle import SETTINGS, Oracle, PatientEngine

from gramary import Connector
from gramary.errors import RowFetchError


def step_and_check(serving: Engine, request: Request, count: int) -> None:
    """Runs a step and asks how it went: a GPU's rows turn NaN first, and the error comes later."""
    serving.step([(request, count)])
    if serving.device == "cuda":
        torch.cuda.synchronize()
        serving.connector.check()


def test_a_request_is_restarted_after_its_worker_was_killed(
    device: str, oracle: Callable[..., Oracle], prompts: list[list[int]]
) -> None:
    prompt = prompts[1]
    with PatientEngine(device, placement="host=1MiB,disk", worker="process") as serving:
        request = serving.start(prompt)
        serving.step([(request, 5)])
        pid = serving.connector.service.process.pid
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(RowFetchError, match=f"worker process {pid}"):
            step_and_check(serving, request, 4)
        assert time.monotonic() - began < 5
        with pytest.raises(RowFetchError, match=f"worker process {pid}"):
            serving.step([(request, 1)])
        serving.pool.release(request.slot)
        # What the message asks for: a new connector, and the request from its start.
        serving.connector.close()
        serving.connector = Connector(serving.table, max_tokens=MAX_TOKENS, settings=SETTINGS)
        again = serving.start(prompt)
        (logits,) = serving.step([(again, len(prompt))])
    torch.testing.assert_close(logits, oracle(device).logits(prompt), rtol=1e-4, atol=1e-4)
