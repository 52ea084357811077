"""A prefix cache: windows exported from inside one prefill serve requests that share the prefix."""

from collections.abc import Callable

import pytest
import torch
from small_engine import Engine
from stories.oracle import Oracle, PatientEngine

from gramary.errors import SlotError

POSITIONS = (1, 5, 8, 13)


@pytest.mark.behaviour(26)
def test_a_hit_gives_what_a_miss_gives_at_every_offset(
    device: str,
    engine: Callable[..., Engine],
    oracle: Callable[..., Oracle],
    prompts: list[list[int]],
) -> None:
    """Behaviour 26: on from the very prefix, and with another ending."""
    serving, prompt = engine(device), prompts[0][:14]
    cold = serving.start(prompt)
    (logits,) = serving.step([(cold, len(prompt))])
    kept = serving.export(cold, POSITIONS)
    for checkpoint in kept:
        for suffix in (prompt[checkpoint.position :], prompts[2][3:7]):
            if not suffix:
                continue
            warm = serving.resume(cold, checkpoint, suffix)
            (found,) = serving.step([(warm, len(suffix))])
            expected = oracle(device).logits(warm.tokens)[checkpoint.position :]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            serving.pool.release(warm.slot)
    torch.testing.assert_close(logits, oracle(device).logits(prompt), rtol=1e-4, atol=1e-4)
    with pytest.raises(SlotError, match="look prefixes up by all their tokens"):
        serving.pool.restore(kept[1], 5, [1, 2])
    serving.pool.release(cold.slot)
    for checkpoint in kept:
        serving.pool.discard(checkpoint)


def test_another_server_takes_the_window_over(
    device: str, oracle: Callable[..., Oracle], prompts: list[list[int]]
) -> None:
    """As bytes, into a pool with another capacity."""
    prompt = prompts[1]
    with (
        PatientEngine(device, max_drafts=3) as first,
        PatientEngine(device, max_drafts=0) as second,
    ):
        cold = first.start(prompt)
        first.step([(cold, 9)])
        (checkpoint,) = first.export(cold, (6,))
        blob = first.pool.export_blob(checkpoint)
        warm = second.resume(cold, second.pool.import_blob(blob), prompt[6:])
        (found,) = second.step([(warm, len(prompt) - 6)])
    torch.testing.assert_close(found, oracle(device).logits(prompt)[6:], rtol=1e-4, atol=1e-4)
