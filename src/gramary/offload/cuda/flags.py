"""Waiting for a word and writing one by tiny kernels: for drivers without stream memory operations.

A waiting kernel holds one multiprocessor's slot and reads over the bus all the while.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gramary.offload.cuda.words import behind_fence, load_int32, store_int32


@triton.jit(do_not_specialize=["address", "value"])
def wait_kernel(address: tl.int64, value: tl.int64):
    """Ends once the 32-bit word at `address` is `value` or newer, counted around."""
    place = tl.cast(address, tl.int64)
    wanted = tl.cast(value, tl.int64).to(tl.int32)
    while load_int32(place) - wanted < 0:
        pass


@triton.jit(do_not_specialize=["address", "value"])
def write_kernel(address: tl.int64, value: tl.int64):
    """Writes a 32-bit word behind everything the stream wrote before."""
    word = behind_fence(tl.cast(value, tl.int64)).to(tl.int32)
    store_int32(tl.cast(address, tl.int64), word)


def wait_word(address: int, value: int) -> None:
    """Holds the current stream until a word is `value` or newer."""
    wait_kernel[(1,)](address, value, num_warps=1)


def write_word(address: int, value: int) -> None:
    """Writes a word in the order of the current stream."""
    write_kernel[(1,)](address, value, num_warps=1)


__all__ = ["wait_kernel", "wait_word", "write_kernel", "write_word"]
