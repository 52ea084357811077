"""Kind 17: a connector's kernels are loaded when it is made, so that no first launch waits."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from abilities import ask_for
from children import run_child
from offload_stage import make_batch, make_table

from gramary import Batch, Connector, Settings

PATIENT = Settings(request_timeout_s=20, num_threads=1)

# Kernels by the module that launches them.
KERNELS = {"request": ("request_kernel",), "take": ("take_kernel", "settle_kernel")}


class Recorder:
    """Stands for a kernel; takes note of what it is loaded for, and launched with."""

    def __init__(self, kernel: Any, loaded: set[Any], launched: set[Any]) -> None:
        self._kernel, self._loaded, self._launched = kernel, loaded, launched

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*values: Any, **options: Any) -> None:
            self._launched.add(self._key(values, options))
            self._kernel[grid](*values, **options)

        return run

    def warmup(self, *values: Any, grid: tuple[int, ...], **options: Any) -> Any:
        assert grid
        self._loaded.add(self._key(values, options))
        return SimpleNamespace(_init_handles=lambda: None)

    def _key(self, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What Triton compiles a kernel for: dtypes, how the result is aligned, constants."""
        kinds = [v.dtype if isinstance(v, torch.Tensor) else type(v).__name__ for v in values]
        is_aligned = values[0].data_ptr() % 16 == 0
        return self._kernel.__name__, tuple(kinds), is_aligned, tuple(sorted(options.items()))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> tuple[set[Any], set[Any]]:
    ask_for("triton")
    import importlib

    loaded: set[Any] = set()
    launched: set[Any] = set()
    for name, kernels in KERNELS.items():
        module = importlib.import_module(f"gramary.offload.cuda.{name}")
        for kernel in kernels:
            monkeypatch.setattr(module, kernel, Recorder(getattr(module, kernel), loaded, launched))
    monkeypatch.setattr("gramary.offload.cuda.loading.is_interpreted", lambda: False)
    # Small batches are copied too, each by the tile that large ones have.
    monkeypatch.setattr("gramary.offload.cuda.take.COPIED_FROM_ROWS", 60)
    return loaded, launched


@pytest.mark.parametrize("num_tables", [1, 2])
def test_kind_17_whatever_the_lanes_launch_was_loaded_before(
    cuda_connector: Callable[..., Connector], recorded: tuple[set[Any], set[Any]], num_tables: int
) -> None:
    loaded, launched = recorded
    tables = [make_table(codec, table_index=i) for i, codec in enumerate(("fp8", "bf16"))]
    with cuda_connector(tables[:num_tables], max_tokens=64, settings=PATIENT) as connector:
        assert loaded
        assert not launched
        for prefill in (True, False):
            for lengths in ((5, 0, 3), (10, 6)):
                whole = make_batch(1, lengths=lengths, prefill=prefill)
                # The host lane hashes on the CPU.
                others = [] if prefill or len(lengths) < 3 else narrowed(whole)
                for batch in (whole, *others):
                    ticket = connector.request(batch)
                    for index in reversed(range(num_tables)):
                        connector.wait(ticket, table_index=index)
            given_up = connector.request(make_batch(2, prefill=prefill))
            if num_tables > 1:
                connector.wait(given_up)
            connector.cancel(given_up)
    for table in tables:
        table.close()
    assert launched
    assert launched <= loaded, launched - loaded
    names = {key[0] for key in launched}
    assert names == {"request_kernel", "take_kernel", "settle_kernel"}


def narrowed(batch: Batch) -> list[Batch]:
    """Returns a batch in the other ways in which tokens and histories come."""
    words: dict[str, Any] = {"is_prefill": batch.is_prefill}
    starts, history = batch.query_start_loc, batch.history
    assert history is not None
    return [
        Batch(batch.token_ids.int(), starts, history=history.int(), **words),
        Batch(batch.token_ids.int(), starts, history=history, **words),
        Batch(batch.token_ids, starts, **words),
    ]


ON_GPU = """
import time
import torch
from triton import knobs
from gramary import Connector, Settings
from offload_stage import make_batch, make_table

settings = Settings(request_timeout_s=5, force_doorbell=True, host_gather_rows=4096)
table = make_table(device="cuda", settings=settings)
connector = Connector(table, max_tokens=4096, settings=settings)
# Making the first stream of a process waits for the device, and keeps the watchdog from running.
stream = torch.cuda.Stream()
loads = []
knobs.runtime.kernel_load_start_hook = lambda *facts: loads.append(facts[2])
# A worker that does not answer, and streams that wait for it.
connector.service.native.hold(True)
began = time.monotonic()
tickets = [connector.request(make_batch(0, lengths=(5, 3))) for _ in range(2)]
small = connector.wait(tickets[0])
with torch.cuda.stream(stream):
    decode = connector.request(make_batch(1, lengths=(4, 4), prefill=False))
    decoded = connector.wait(decode)
waited = connector.wait(tickets[1])
took = time.monotonic() - began
connector.service.native.hold(False)
torch.cuda.synchronize()
large = connector.wait(connector.request(make_batch(2, lengths=(4000, 90))))
torch.cuda.synchronize()
connector.check()
assert not loads, loads
assert took < 1, took
assert not small.isnan().any() and not decoded.isnan().any() and not large.isnan().any()
connector.close()
table.close()
"""


@pytest.mark.gpu
def test_kind_17_on_a_gpu_no_launch_waits_for_a_worker_that_stands_still() -> None:
    """In a process of its own, where nothing was loaded by another test."""
    done = run_child(ON_GPU)
    assert done.returncode == 0, done.stderr[-3000:]
