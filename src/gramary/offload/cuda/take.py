"""A table's rows, taken out of a slot by the GPU behind the wait for its flag.

A small batch is read in place, over the bus, in one launch: one program looks at the answer, the
last one judges by it, lowers the flag and, behind the last table, writes the released number. A
large one is copied to device memory first (`bring`) and judged before it is decoded. An answer that
is not this request's, or a failure, makes the whole result NaN.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gramary.model.codecs import Codec
from gramary.native.rows import RowExtent
from gramary.offload.cuda.answers import is_good, keep_failure, lower_flag
from gramary.offload.cuda.bring import bring_rows
from gramary.offload.cuda.loading import Launch, launch
from gramary.offload.cuda.slots import DeviceSlot
from gramary.offload.cuda.streams import Streams
from gramary.offload.cuda.words import is_last_program, load_int64, load_int64_if
from gramary.ops._triton.rows import WRONG_ROW, ZERO_ROW, load_rows, store_rows
from gramary.ops._triton.tiles import Format, Tile, tile_for
from gramary.ops.extents import kernel_arguments

# Rows from which on they are copied first: a kernel that reads over the bus holds its
# multiprocessors meanwhile.
COPIED_FROM_ROWS = 4096

# One warp a program, since each warp of the first one asks for the answer over the bus.
_IN_PLACE = Tile(rows=4, lanes=32, num_warps=1)


@triton.jit
def poison_rows(i_out, p_out, scale, CODEC: tl.constexpr, DIM: tl.constexpr, BITS: tl.constexpr,
                BR: tl.constexpr, BE: tl.constexpr, ALIGN: tl.constexpr):  # fmt: skip
    """Makes rows i_out [BR] of the result NaN; a row below 0 is not written."""
    wrong = load_rows(i_out * 0 + WRONG_ROW, CODEC, DIM, BITS, BE, ALIGN)
    store_rows(wrong, p_out, i_out, scale, CODEC, DIM, BR, BE)


@triton.jit(do_not_specialize=["p_counter", "p_count", "p_verdict", "p_failure", "rows_address",
                               "ids_address", "answer_address", "state_address", "header_address",
                               "N", "given_number", "i_table", "device_address", "device_first",
                               "device_end", "scale"])  # fmt: skip
def take_kernel(
    p_out, p_counter, p_count, p_verdict, p_failure,
    rows_address: tl.int64, ids_address: tl.int64, answer_address: tl.int64,
    state_address: tl.int64, header_address: tl.int64,
    N: tl.int64, given_number: tl.int64, i_table: tl.int64,
    device_address: tl.int64, device_first: tl.int64, device_end: tl.int64, scale,
    IS_STREAM: tl.constexpr, HAS_IDS: tl.constexpr, IS_COPIED: tl.constexpr,
    RELEASES: tl.constexpr,
    ROW_BYTES: tl.constexpr, CODEC: tl.constexpr, DIM: tl.constexpr, BITS: tl.constexpr,
    ALIGN: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Decodes BR rows a program, out of the slot or its copy, or out of device rows."""
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
    if not IS_COPIED:
        # One program asks for the answer, over the bus together with its rows. Behind the flag a
        # request is settled: what it asks for changes no more.
        is_first = tl.program_id(0) == 0
        state = load_int64_if(tl.cast(state_address, tl.int64), is_first)
        number = tl.load(p_counter) if IS_STREAM else tl.cast(given_number, tl.int64)
    chunks = load_rows(address, CODEC, DIM, BITS, BE, ALIGN)
    i_out = tl.where(m_row, i_row, -1)
    if IS_COPIED:
        if tl.load(p_verdict) != 0:
            store_rows(chunks, p_out, i_out, scale, CODEC, DIM, BR, BE)
        else:
            poison_rows(i_out, p_out, scale, CODEC, DIM, BITS, BR, BE, ALIGN)
    else:
        # As if all were well; the last program, which sees what the others wrote, judges.
        store_rows(chunks, p_out, i_out, scale, CODEC, DIM, BR, BE)
        tl.store(p_verdict, is_good(state, number).to(tl.int64), mask=is_first)
        if is_last_program(p_count):
            answer, header = tl.cast(answer_address, tl.int64), tl.cast(header_address, tl.int64)
            if tl.load(p_verdict, volatile=True) == 0:
                keep_failure(p_failure, answer, number, i_table)
                for i_block in range(tl.num_programs(0)):
                    i_bad = tl.arange(0, BR).to(tl.int64) + i_block * BR
                    i_bad = tl.where(i_bad < N, i_bad, -1)
                    poison_rows(i_bad, p_out, scale, CODEC, DIM, BITS, BR, BE, ALIGN)
            lower_flag(answer, header, number, IS_STREAM, RELEASES)


@triton.jit(do_not_specialize=["p_counter", "p_verdict", "p_failure", "answer_address",
                               "state_address", "header_address", "given_number",
                               "i_table"])  # fmt: skip
def settle_kernel(
    p_counter, p_verdict, p_failure, answer_address: tl.int64, state_address: tl.int64,
    header_address: tl.int64, given_number: tl.int64, i_table: tl.int64,
    IS_STREAM: tl.constexpr, CHECKS: tl.constexpr, RELEASES: tl.constexpr,
):  # fmt: skip
    """One program: writes the verdict on an answer if asked to, lowers its flag, releases."""
    number = tl.load(p_counter) if IS_STREAM else tl.cast(given_number, tl.int64)
    answer = tl.cast(answer_address, tl.int64)
    if CHECKS:
        is_answered = is_good(load_int64(tl.cast(state_address, tl.int64)), number)
        tl.store(p_verdict, is_answered.to(tl.int64))
        if is_answered == 0:
            keep_failure(p_failure, answer, number, i_table)
    lower_flag(answer, tl.cast(header_address, tl.int64), number, IS_STREAM, RELEASES)


def take_rows(
    slot: DeviceSlot,
    table_index: int,
    number: int,
    codec: Codec,
    device_extent: RowExtent,
    out: torch.Tensor,
    streams: Streams,
    *,
    releases: bool,
) -> None:
    """Waits for a table's flag and writes its rows, decoded, to `out`, on the current stream.

    Args:
        slot: where they arrive.
        table_index: which table's.
        number: the request's number; 0 in a stream's slot, which counts by itself.
        codec: how they are encoded.
        device_extent: the table's rows in the device's own memory; others are in the slot.
        out: [T, heads * width] in an output dtype, contiguous, on the device.
        streams: the device's streams.
        releases: whether the slot may be overwritten once these rows are taken.
    """
    num_rows = out.numel() // codec.output_width(out.dtype)
    if num_rows < COPIED_FROM_ROWS:
        streams.wait(slot.ready_address(table_index), 1)
        launch_take(
            slot,
            table_index,
            number,
            codec,
            device_extent,
            out,
            num_rows=num_rows,
            releases=releases,
        )
        return
    rows = bring_rows(slot, table_index, number, num_rows, streams)
    ids = None
    if device_extent.num_rows and not slot.is_stream:
        ids = slot.copy_of_ids(table_index, num_rows)
    settle(slot, table_index, number, checks=True, releases=releases)
    launch_take(
        slot, table_index, number, codec, device_extent, out, num_rows=num_rows, releases=releases,
        copy=rows.data_ptr(), ids_address=None if ids is None else ids.data_ptr(),
    )  # fmt: skip


def launch_take(
    slot: DeviceSlot,
    table_index: int,
    number: int,
    codec: Codec,
    device_extent: RowExtent,
    out: torch.Tensor,
    *,
    num_rows: int,
    releases: bool,
    copy: int = 0,
    ids_address: int | None = None,
    launch: Launch = launch,
) -> None:
    """Launches the kernel that decodes rows to `out`, out of the slot or out of their copy.

    Args:
        slot, table_index, number, codec, device_extent, out, releases: as for `take_rows`.
        num_rows: rows of the batch; they decide whether the rows are copied, and the tile.
        copy: where their copy on the device begins, if they are copied.
        ids_address: where the device finds the ids; None is where the slot has them.
        launch: what is done with the kernel and its arguments; `load` only loads it.
    """
    is_copied = num_rows >= COPIED_FROM_ROWS
    has_ids = slot.is_stream or device_extent.num_rows > 0
    rows_address = copy if is_copied else slot.rows_address(table_index)
    if ids_address is None:
        ids_address = slot.known_ids_address(table_index)
    form = Format.of(codec, out, rows_address | device_extent.address)
    tile = tile_for(num_rows) if is_copied else _IN_PLACE
    launch(
        take_kernel,
        (max(1, triton.cdiv(num_rows, tile.rows)),),
        out.view(form.out_dtype),
        slot.counter,
        slot.take_programs[table_index],
        slot.verdicts[table_index],
        slot.failure,
        rows_address,
        ids_address,
        slot.answer_address(table_index),
        slot.state_address(table_index, number),
        slot.header_address,
        num_rows,
        number,
        table_index,
        *kernel_arguments(device_extent),
        form.scale,
        IS_STREAM=slot.is_stream,
        HAS_IDS=has_ids,
        IS_COPIED=is_copied,
        RELEASES=releases,
        **form.constants(),
        **tile.constants(form),
    )


def settle(
    slot: DeviceSlot,
    table_index: int,
    number: int,
    *,
    checks: bool = False,
    releases: bool = False,
    launch: Launch = launch,
) -> None:
    """Lowers an answer's flag; checks it first and releases its slot then, as asked."""
    launch(
        settle_kernel,
        (1,),
        slot.counter,
        slot.verdicts[table_index],
        slot.failure,
        slot.answer_address(table_index),
        slot.state_address(table_index, number),
        slot.header_address,
        number,
        table_index,
        IS_STREAM=slot.is_stream,
        CHECKS=checks,
        RELEASES=releases,
        num_warps=1,
    )


__all__ = ["launch_take", "settle", "settle_kernel", "take_kernel", "take_rows"]
