"""A table's answer as the consumer's kernels look at it, keep its failure, and lower its flag."""

import triton
import triton.language as tl

from gramary.native.ring import Phase, RingFields
from gramary.offload.cuda.words import (
    behind_fence,
    load_int32,
    load_int64,
    store_int32,
    store_int64,
)

_ANSWER_NUMBER = tl.constexpr(RingFields.ANSWER_NUMBER)
_ANSWER_FAILURE = tl.constexpr(RingFields.ANSWER_FAILURE)
_ANSWER_ERROR = tl.constexpr(RingFields.ANSWER_ERROR)
_ANSWER_FILE = tl.constexpr(RingFields.ANSWER_FILE)
_ANSWER_OFFSET = tl.constexpr(RingFields.ANSWER_OFFSET)
_READY = tl.constexpr(RingFields.READY)
_RELEASED = tl.constexpr(RingFields.RELEASED)
_NUM_PHASES = tl.constexpr(RingFields.NUM_PHASES)
_PUBLISHED = tl.constexpr(int(Phase.PUBLISHED))


@triton.jit
def is_good(state, number):
    """Whether the rows in the slot are those of request `number`, by the table's state word.

    Every warp that reads a word over the bus waits for its own answer, and those that read the
    same word wait for each other: one small program reads it, once.
    """
    return state == number * _NUM_PHASES + _PUBLISHED


@triton.jit
def keep_failure(p_failure, answer, number, i_table):
    """Writes a slot's first failure down for the host, unless it has not read the last one."""
    if tl.load(p_failure, volatile=True) == 0:
        tl.store(p_failure + 1, number)
        tl.store(p_failure + 2, i_table)
        tl.store(p_failure + 3, load_int64(answer + _ANSWER_NUMBER))
        tl.store(p_failure + 4, load_int32(answer + _ANSWER_FAILURE).to(tl.int64))
        tl.store(p_failure + 5, load_int32(answer + _ANSWER_ERROR).to(tl.int64))
        tl.store(p_failure + 6, load_int32(answer + _ANSWER_FILE).to(tl.int64))
        tl.store(p_failure + 7, load_int64(answer + _ANSWER_OFFSET))
        tl.store(p_failure, behind_fence(tl.cast(1, tl.int64)))


@triton.jit
def lower_flag(answer, header, number, IS_STREAM: tl.constexpr, RELEASES: tl.constexpr):
    """Lowers a table's flag; then, if asked to, says that the slot may be overwritten.

    Whoever reads the released number of a host-lane slot finds its flag lowered. A stream's slot is
    used again by the stream's next request alone, whose own fence stands behind this kernel: a
    fence here would cost every step and order nothing.
    """
    store_int32(answer + _READY, 0)
    if RELEASES:
        store_int64(header + _RELEASED, number if IS_STREAM else behind_fence(number))


__all__ = ["is_good", "keep_failure", "lower_flag"]
