"""A layer's rows, taken out of a slot by the GPU behind the wait for its flag.

A small batch is read in place, over the bus, in one launch that also checks the answer, lowers the
flag and, behind the last layer, writes the released number. Larger ones are brought to device
memory first (`bring`) and decoded there. An answer that is not this request's, or a failure, makes
the whole result NaN.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gramary.codecs import Codec
from gramary.offload.cuda.answers import is_answered, keep_failure, lower_flag
from gramary.offload.cuda.bring import bring_by_copies, bring_by_kernel
from gramary.offload.cuda.slots import DeviceSlot
from gramary.offload.cuda.streams import Streams
from gramary.offload.cuda.words import is_last_program
from gramary.ops._triton.rows import WRONG_ROW, ZERO_ROW, load_rows, store_rows
from gramary.ops._triton.tiles import Format, tile_for
from gramary.ops.extents import Extents

# Rows from which on they are brought by a kernel of its own, and from which on by the copy engine:
# a kernel that reads over the bus holds its multiprocessors meanwhile.
BROUGHT_FROM_ROWS = 256
COPIED_FROM_ROWS = 4096


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
    IS_STREAM: tl.constexpr, HAS_IDS: tl.constexpr, IS_BROUGHT: tl.constexpr,
    RELEASES: tl.constexpr,
    ROW_BYTES: tl.constexpr, CODEC: tl.constexpr, DIM: tl.constexpr, BITS: tl.constexpr,
    ALIGN: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Decodes BR rows a program, out of the slot, what was brought of it, or device rows."""
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
    if IS_BROUGHT:
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
    if not IS_BROUGHT:
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
    IS_STREAM: tl.constexpr, CHECKS: tl.constexpr, RELEASES: tl.constexpr,
):  # fmt: skip
    """One program: writes the verdict on an answer if asked to, lowers its flag, releases."""
    number = tl.load(p_counter) if IS_STREAM else tl.cast(given_number, tl.int64)
    answer = tl.cast(answer_address, tl.int64)
    if CHECKS:
        is_good = is_answered(answer, tl.cast(state_address, tl.int64), number)
        tl.store(p_verdict, is_good.to(tl.int64))
        if is_good == 0:
            keep_failure(p_failure, answer, number, i_layer)
    lower_flag(answer, tl.cast(header_address, tl.int64), number, RELEASES)


def take_rows(
    slot: DeviceSlot,
    layer: int,
    number: int,
    codec: Codec,
    extents: Extents,
    out: torch.Tensor,
    streams: Streams,
    *,
    releases: bool,
) -> None:
    """Waits for a layer's flag and writes its rows, decoded, to `out`, on the current stream.

    Args:
        slot: where they arrive.
        layer: which layer's.
        number: the request's number; 0 in a stream's slot, which counts by itself.
        codec: how they are encoded.
        extents: the table's rows in the device's own memory; others are in the slot.
        out: [T, heads * width] in an output dtype, contiguous, on the device.
        streams: the device's streams.
        releases: whether the slot may be overwritten once these rows are taken.
    """
    num_rows = out.numel() // codec.output_width(out.dtype)
    is_brought = num_rows >= BROUGHT_FROM_ROWS
    has_ids = slot.is_stream or extents.device_rows is not None
    rows_address, ids_address = slot.rows_address(layer), slot.known_ids_address(layer)
    if not is_brought:
        streams.wait(slot.ready_address(layer), 1)
    else:
        rows, ids = bring(slot, layer, number, num_rows, streams, has_ids, releases=releases)
        rows_address = rows.data_ptr()
        ids_address = ids_address if ids is None else ids.data_ptr()
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
        IS_BROUGHT=is_brought,
        RELEASES=releases,
        **form.constants(),
        **tile.constants(form),
    )


def bring(
    slot: DeviceSlot,
    layer: int,
    number: int,
    num_rows: int,
    streams: Streams,
    has_ids: bool,
    *,
    releases: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Brings a layer's rows, and the ids that lie beside them, and settles its answer.

    Returns:
        The encoded rows and, where the consumer needs them from the slot, the ids.
    """
    ids = None
    is_copied = num_rows >= COPIED_FROM_ROWS
    if not is_copied or slot.is_stream:
        streams.wait(slot.ready_address(layer), 1)
    if is_copied:
        rows = bring_by_copies(slot, layer, number, num_rows, streams)
        if not slot.is_stream:
            streams.wait(slot.ready_address(layer), 1)
    if has_ids and not slot.is_stream:
        ids = slot.copy_of_ids(layer, num_rows)
    if is_copied:
        settle(slot, layer, number, checks=True, releases=releases)
    else:
        rows = bring_by_kernel(slot, layer, number, num_rows, releases=releases)
    return rows, ids


def settle(
    slot: DeviceSlot, layer: int, number: int, *, checks: bool = False, releases: bool = False
) -> None:
    """Lowers an answer's flag; checks it first and releases its slot then, as asked."""
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
        RELEASES=releases,
        num_warps=1,
    )


__all__ = ["settle", "settle_kernel", "take_kernel", "take_rows"]
