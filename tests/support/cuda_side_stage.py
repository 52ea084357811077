"""The connector's CUDA side on the CPU: Triton's interpreter, and streams of one thread."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from abilities import ask_for

from gramary.native.offload import load_u32


class HostEvent:
    """A point in time of the calling thread."""

    def __init__(self) -> None:
        self.at_ns: int | None = None

    def record(self) -> None:
        self.at_ns = time.monotonic_ns()

    def elapsed_time(self, end_event: HostEvent) -> float:
        if self.at_ns is None or end_event.at_ns is None:
            raise RuntimeError("not recorded")
        return (end_event.at_ns - self.at_ns) / 1e6


class CallingThread:
    """Streams whose work is done at once, by the thread that queues it."""

    def __init__(self) -> None:
        self.stream = 0
        self.capturing = False

    def on_device(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def key(self) -> int:
        return self.stream

    def is_capturing(self) -> bool:
        return self.capturing

    def wait(self, address: int, value: int) -> None:
        deadline = time.monotonic() + 20
        # Counted around, as the driver does.
        while (load_u32(address) - value) & 0x80000000:
            assert time.monotonic() < deadline, "nobody let the stream go"
            time.sleep(0.0001)

    def new_event(self) -> HostEvent:
        return HostEvent()

    def synchronize(self) -> None:
        """All work is done when it is queued."""


def use_cuda_side(monkeypatch: pytest.MonkeyPatch, streams: CallingThread) -> None:
    """Lets connectors take CPU tables for CUDA tables; skips where kernels are not interpreted."""
    # With a GPU, test_on_gpu.py runs.
    ask_for("interpreter")
    from gramary.offload.cuda.device import CudaDevice

    def make_device(*arguments: Any) -> CudaDevice:
        return CudaDevice(*arguments, streams)

    monkeypatch.setattr("gramary.offload.connector.make_device", make_device)
    monkeypatch.setattr("gramary.offload.setup.NUM_CUDA_STREAMS", 2)
