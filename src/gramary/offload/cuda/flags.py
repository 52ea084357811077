"""Waiting for a word by a tiny kernel: for drivers without stream memory operations.

A waiting kernel holds one multiprocessor's slot and reads over the bus all the while.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gramary.offload.cuda.words import load_int32


@triton.jit(do_not_specialize=["address", "value"])
def wait_kernel(address: tl.int64, value: tl.int64):
    """Ends once the 32-bit word at `address` is `value` or newer, counted around."""
    place = tl.cast(address, tl.int64)
    wanted = tl.cast(value, tl.int64).to(tl.int32)
    while load_int32(place) - wanted < 0:
        pass


def wait_word(address: int, value: int) -> None:
    """Holds the current stream until a word is `value` or newer."""
    wait_kernel[(1,)](address, value, num_warps=1)


__all__ = ["wait_kernel", "wait_word"]
