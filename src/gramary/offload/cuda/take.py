"""A layer's rows, taken out of a slot by the GPU behind the wait for its flag.

Small batches are read in place, over the bus, in one launch that also checks the answer, lowers
the flag and, behind the last layer, writes the released number. Large ones are copied to device
memory first, by the copy engine; a launch before the copy checks, one behind it releases.
An answer that is not this request's, or a failure, makes the whole result NaN.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gramary.codecs import Codec
from gramary.offload import ring
from gramary.offload.cuda.slots import DeviceSlot
from gramary.offload.cuda.words import (
    behind_fence,
    is_last_program,
    load_int32,
    load_int64,
    store_int32,
    store_int64,
)
from gramary.ops._triton.rows import WRONG_ROW, ZERO_ROW, load_rows, store_rows
from gramary.ops._triton.tiles import Format, tile_for
from gramary.ops.extents import Extents

_ANSWER_NUMBER = tl.constexpr(ring.ANSWER_NUMBER)
_ANSWER_FAILURE = tl.constexpr(ring.ANSWER_FAILURE)
_ANSWER_ERROR = tl.constexpr(ring.ANSWER_ERROR)
_ANSWER_FILE = tl.constexpr(ring.ANSWER_FILE)
_ANSWER_OFFSET = tl.constexpr(ring.ANSWER_OFFSET)
_READY = tl.constexpr(ring.READY)
_RELEASED = tl.constexpr(ring.RELEASED)
_PUBLISHED = tl.constexpr(int(ring.Phase.PUBLISHED))

# Rows from which on they are copied first: reading in place holds the multiprocessors, and a
# batch this large hides two more launches.
STAGED_FROM_ROWS = 4096


@triton.jit
def is_answered(answer, state, number):
    """Whether the rows in the slot are those of request `number`.

    The state word settles whose turn it was: an answer that comes after its request was given up
    has the right number and is void.
    """
    answered = load_int64(answer + _ANSWER_NUMBER)
    failure = load_int32(answer + _ANSWER_FAILURE)
    settled = load_int64(state)
    return (answered == number) & (failure == 0) & (settled == number * 4 + _PUBLISHED)


@triton.jit
def keep_failure(p_failure, answer, number, i_layer):
    """Writes a slot's first failure down for the host, unless it has not read the last one."""
    if tl.load(p_failure, volatile=True) == 0:
        tl.store(p_failure + 1, number)
        tl.store(p_failure + 2, i_layer)
        tl.store(p_failure + 3, load_int64(answer + _ANSWER_NUMBER))
        tl.store(p_failure + 4, load_int32(answer + _ANSWER_FAILURE).to(tl.int64))
        tl.store(p_failure + 5, load_int32(answer + _ANSWER_ERROR).to(tl.int64))
        tl.store(p_failure + 6, load_int32(answer + _ANSWER_FILE).to(tl.int64))
        tl.store(p_failure + 7, load_int64(answer + _ANSWER_OFFSET))
        tl.store(p_failure, behind_fence(tl.cast(1, tl.int64)))


@triton.jit
def lower_flag(answer, header, number, RELEASES: tl.constexpr):
    """Lowers a layer's flag; then, if asked to, says that the slot may be overwritten."""
    store_int32(answer + _READY, 0)
    if RELEASES:
        store_int64(header + _RELEASED, behind_fence(number))


@triton.jit(do_not_specialize=["p_counter", "p_count", "p_verdict", "p_failure", "rows_address",
                               "ids_address", "answer_address", "state_address", "header_address",
                               "N", "given_number", "i_layer", "device_address", "device_first",
                               "device_end", "scale"])  # fmt: skip
def take_kernel(
    p_out, p_counter, p_count, p_verdict, p_failure,
    rows_address: tl.int64, ids_address: tl.int64, answer_address: tl.int64,
    state_address: tl.int64, header_address: tl.int64,
    N: tl.int64, given_number: tl.int64, i_layer: tl.int64,
    device_address: tl.int64, device_first: tl.int64, device_end: tl.int64, scale,
    IS_STREAM: tl.constexpr, HAS_IDS: tl.constexpr, IS_STAGED: tl.constexpr,
    RELEASES: tl.constexpr,
    ROW_BYTES: tl.constexpr, CODEC: tl.constexpr, DIM: tl.constexpr, BITS: tl.constexpr,
    ALIGN: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Decodes BR rows a program, out of the slot or (staged) its copy, or out of device rows."""
    i_row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    m_row = i_row < N
    address = tl.cast(rows_address, tl.int64) + i_row * ROW_BYTES
    if HAS_IDS:
        p_ids = tl.cast(ids_address, tl.int64).to(tl.pointer_type(tl.int64))
        row_ids = tl.load(p_ids + i_row, mask=m_row, other=-1)
        in_device = (row_ids >= device_first) & (row_ids < device_end)
        own = device_address + (row_ids - device_first) * ROW_BYTES
        address = tl.where(in_device, own, address)
        address = tl.where(row_ids < 0, tl.where(row_ids < -1, WRONG_ROW, ZERO_ROW), address)
    address = tl.where(m_row, address, ZERO_ROW)
    # Read before the answer is looked at: both are under way together.
    chunks = load_rows(address, CODEC, DIM, BITS, BE, ALIGN)
    answer = tl.cast(answer_address, tl.int64)
    number = tl.load(p_counter) if IS_STREAM else tl.cast(given_number, tl.int64)
    if IS_STAGED:
        is_good = tl.load(p_verdict) != 0
    else:
        is_good = is_answered(answer, tl.cast(state_address, tl.int64), number)
    i_out = tl.where(m_row, i_row, -1)
    if is_good:
        store_rows(chunks, p_out, i_out, scale, CODEC, DIM, BR, BE)
    else:
        nowhere = i_row * 0 + WRONG_ROW
        wrong = load_rows(nowhere, CODEC, DIM, BITS, BE, ALIGN)
        store_rows(wrong, p_out, i_out, scale, CODEC, DIM, BR, BE)
    if not IS_STAGED:
        if is_last_program(p_count):
            if is_good == 0:
                keep_failure(p_failure, answer, number, i_layer)
            lower_flag(answer, tl.cast(header_address, tl.int64), number, RELEASES)


@triton.jit(do_not_specialize=["p_counter", "p_verdict", "p_failure", "answer_address",
                               "state_address", "header_address", "given_number",
                               "i_layer"])  # fmt: skip
def settle_kernel(
    p_counter, p_verdict, p_failure, answer_address: tl.int64, state_address: tl.int64,
    header_address: tl.int64, given_number: tl.int64, i_layer: tl.int64,
    IS_STREAM: tl.constexpr, CHECKS: tl.constexpr, LOWERS: tl.constexpr, RELEASES: tl.constexpr,
):  # fmt: skip
    """One program: writes the verdict on an answer, lowers its flag, releases its slot."""
    number = tl.load(p_counter) if IS_STREAM else tl.cast(given_number, tl.int64)
    answer, header = tl.cast(answer_address, tl.int64), tl.cast(header_address, tl.int64)
    if CHECKS:
        is_good = is_answered(answer, tl.cast(state_address, tl.int64), number)
        tl.store(p_verdict, is_good.to(tl.int64))
        if is_good == 0:
            keep_failure(p_failure, answer, number, i_layer)
    if LOWERS:
        lower_flag(answer, header, number, RELEASES)
    elif RELEASES:
        store_int64(header + _RELEASED, behind_fence(number))


def take_rows(
    slot: DeviceSlot,
    layer: int,
    number: int,
    codec: Codec,
    extents: Extents,
    out: torch.Tensor,
    *,
    releases: bool,
) -> None:
    """Writes a layer's rows, decoded, to `out`, on the current stream, behind its flag.

    Args:
        slot: where they arrive.
        layer: which layer's.
        number: the request's number; 0 in a stream's slot, which counts by itself.
        codec: how they are encoded.
        extents: the table's rows in the device's own memory; others are in the slot.
        out: [T, heads * width] in an output dtype, contiguous, on the device.
        releases: whether the slot may be overwritten once these rows are taken.
    """
    num_rows = out.numel() // codec.output_width(out.dtype)
    is_staged = num_rows >= STAGED_FROM_ROWS
    has_ids = slot.is_stream or extents.device_rows is not None
    rows_address, ids_address = slot.rows_address(layer), slot.known_ids_address(layer)
    if is_staged:
        settle(slot, layer, number, checks=True, lowers=True)
        rows = slot.staged_rows(layer, num_rows)
        ids = slot.staged_ids(layer, num_rows) if has_ids and not slot.is_stream else None
        rows_address = rows.data_ptr()
        ids_address = ids_address if ids is None else ids.data_ptr()
        if releases:
            settle(slot, layer, number, releases=True)
    form = Format.of(codec, out, rows_address | extents.device_address)
    tile = tile_for(num_rows)
    take_kernel[(max(1, triton.cdiv(num_rows, tile.rows)),)](
        out.view(form.out_dtype),
        slot.counter,
        slot.take_programs[layer],
        slot.verdicts[layer],
        slot.failure,
        rows_address,
        ids_address,
        slot.answer_address(layer),
        slot.state_address(layer, number),
        slot.header_address,
        num_rows,
        number,
        layer,
        extents.device_address,
        extents.device_first,
        extents.device_end,
        form.scale,
        IS_STREAM=slot.is_stream,
        HAS_IDS=has_ids,
        IS_STAGED=is_staged,
        RELEASES=releases,
        **form.constants(),
        **tile.constants(form),
    )


def settle(
    slot: DeviceSlot,
    layer: int,
    number: int,
    *,
    checks: bool = False,
    lowers: bool = False,
    releases: bool = False,
) -> None:
    """Checks an answer, lowers its flag and releases its slot, as asked, on the current stream."""
    settle_kernel[(1,)](
        slot.counter,
        slot.verdicts[layer],
        slot.failure,
        slot.answer_address(layer),
        slot.state_address(layer, number),
        slot.header_address,
        number,
        layer,
        IS_STREAM=slot.is_stream,
        CHECKS=checks,
        LOWERS=lowers,
        RELEASES=releases,
        num_warps=1,
    )


__all__ = ["settle", "settle_kernel", "take_kernel", "take_rows"]
