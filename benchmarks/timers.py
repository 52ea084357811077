"""How one sample is taken: on the CPU's clock, by CUDA events, by replaying a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

Work = Callable[[], object]


class Timer(Protocol):
    """Takes samples of prepared work; `name` is the receipt's `timer`."""

    name: str

    def prepare(self, work: Work) -> Callable[[], float]:
        """Returns a function that takes one sample: microseconds a call of `work`."""


class CpuTimer:
    """Wall time of a loop of calls, long enough that the clock's own cost vanishes.

    Args:
        min_sample_us: length to fill; a call that is longer is timed alone.
        once: call the work exactly once a sample (cold caches, state that a call uses up).
    """

    name = "cpu"

    def __init__(self, min_sample_us: float = 20_000.0, *, once: bool = False) -> None:
        self.min_sample_us = min_sample_us
        self.once = once

    def prepare(self, work: Work) -> Callable[[], float]:
        """Warms the work up and returns its sampler."""
        if self.once:
            return lambda: _loop_us(work, 1)
        _loop_us(work, 1)
        calls = max(1, round(self.min_sample_us / max(_loop_us(work, 1), 0.1)))
        return lambda: _loop_us(work, calls)


def _loop_us(work: Work, calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        work()
    return (time.perf_counter_ns() - start) / calls / 1e3


class CudaEventTimer:
    """Time between two events around a loop of calls on the current stream.

    Includes launch gaps when the host is slower than the device; a graph timer does not.
    """

    name = "cuda_events"

    def __init__(self, calls: int = 20) -> None:
        self.calls = calls

    def prepare(self, work: Work) -> Callable[[], float]:
        """Warms the work up and returns its sampler."""
        import torch

        for _ in range(3):
            work()
        torch.cuda.synchronize()

        def run_calls() -> None:
            for _ in range(self.calls):
                work()

        return lambda: _events_us(run_calls) / self.calls


class CudaGraphTimer:
    """Device time of one call: `calls` of them captured in one CUDA graph, replayed.

    Args:
        calls: calls captured in one graph.
        replays: replays between the two events of a sample.
        flush_bytes: when given, a buffer of that size is written before each call (and its own
            time subtracted), so that every call starts with a cold L2 cache.
    """

    name = "cuda_graph"

    def __init__(self, calls: int = 20, replays: int = 5, flush_bytes: int = 0) -> None:
        self.calls = calls
        self.replays = replays
        self.flush_bytes = flush_bytes

    def prepare(self, work: Work) -> Callable[[], float]:
        """Captures the work (after a warm-up on a side stream) and returns its sampler."""
        graph = self._capture(self._with_flush(work))
        empty = self._capture(self._with_flush(None)) if self.flush_bytes else None

        def sample() -> float:
            spent = self._replay_us(graph)
            return max(spent - self._replay_us(empty), 0.0) if empty is not None else spent

        sample()
        return sample

    def _with_flush(self, work: Work | None) -> Work:
        import torch

        buffer = torch.empty(self.flush_bytes, dtype=torch.uint8, device="cuda")

        def call() -> None:
            if self.flush_bytes:
                buffer.zero_()
            if work is not None:
                work()

        return call

    def _capture(self, work: Work) -> object:
        import torch

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self.calls):
                work()
        return graph

    def _replay_us(self, graph: object) -> float:
        def run_replays() -> None:
            for _ in range(self.replays):
                graph.replay()  # type: ignore[attr-defined]

        return _events_us(run_replays) / (self.replays * self.calls)


def _events_us(run: Callable[[], None]) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3
