"""Kernels loaded onto the device before anything waits there.

A kernel's first launch loads it, and loading waits for the device. Where a stream already waits for
a worker that does not answer, that launch returns only once the watchdog has let the stream go. So
what the lanes launch is loaded when a connector is made.
"""

from __future__ import annotations

from typing import Any, Protocol

from triton import knobs


class Launch(Protocol):
    """What is done with a kernel and the arguments of one launch."""

    def __call__(self, kernel: Any, grid: tuple[int, ...], *values: Any, **options: Any) -> None:
        """Does it."""


def launch(kernel: Any, grid: tuple[int, ...], *values: Any, **options: Any) -> None:
    """Launches a kernel on the current stream."""
    kernel[grid](*values, **options)


def load(kernel: Any, grid: tuple[int, ...], *values: Any, **options: Any) -> None:
    """Compiles a kernel for such arguments and loads it onto the current device; runs nothing."""
    if not is_interpreted():
        kernel.warmup(*values, grid=grid, **options)._init_handles()


def is_interpreted() -> bool:
    """Returns whether Triton's interpreter runs the kernels, so that there is nothing to load."""
    return bool(knobs.runtime.interpret)


__all__ = ["Launch", "is_interpreted", "launch", "load"]
