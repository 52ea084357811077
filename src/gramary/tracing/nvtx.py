"""NVTX ranges, by which NVIDIA's profilers show what host code was about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_nvtx: Any = torch.cuda.nvtx


def has_nvtx() -> bool:
    """Returns whether ranges can be marked: torch has CUDA and a device is there."""
    return torch.cuda.is_available()


@contextlib.contextmanager
def nvtx_range(name: str, *, is_on: bool) -> Iterator[None]:
    """Marks a block of host code, also one that raises; does nothing unless `is_on`."""
    if not is_on:
        yield
        return
    _nvtx.range_push(name)
    try:
        yield
    finally:
        _nvtx.range_pop()


__all__ = ["has_nvtx", "nvtx_range"]
