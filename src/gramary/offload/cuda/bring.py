"""Encoded rows of a slot, copied to device memory before they are decoded.

A middling batch is brought by one launch that reads the slot in whole lines (rows of their own are
shorter than what the bus carries best), checks the answer, lowers the flag and, behind the last
layer, releases the slot. A large batch is brought by the copy engine: in the host lane part by
part, each behind its share of the progress word, so that the copy runs while the rest is gathered.
What was copied is judged afterwards, by the answer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gramary.offload.cuda.answers import is_answered, keep_failure, lower_flag
from gramary.offload.cuda.slots import DeviceSlot
from gramary.offload.cuda.streams import Streams
from gramary.offload.cuda.words import is_last_program
from gramary.offload.ring import PARTS, progress_of

# What a thread copies at a time, in bytes, and how often a program of 128 threads does.
_UNIT = 16
_BLOCK_UNITS = 256

# Rows of a copy that is worth its launch.
_ROWS_A_COPY = 16384


@triton.jit(do_not_specialize=["source_address", "p_counter", "p_count", "p_verdict", "p_failure",
                               "answer_address", "state_address", "header_address", "num_units",
                               "given_number", "i_layer"])  # fmt: skip
def bring_kernel(
    p_rows, source_address: tl.int64, p_counter, p_count, p_verdict, p_failure,
    answer_address: tl.int64, state_address: tl.int64, header_address: tl.int64,
    num_units: tl.int64, given_number: tl.int64, i_layer: tl.int64,
    IS_STREAM: tl.constexpr, RELEASES: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Copies BU units of 16 bytes a program; the last program settles the answer."""
    i_unit = tl.program_id(0).to(tl.int64) * BU + tl.arange(0, BU)
    m_unit = (i_unit < num_units)[:, None]
    i_word = 4 * i_unit[:, None] + tl.arange(0, 4)[None, :]  # [BU, 4]
    # A slot's rows begin on a page, and end before the end of one or with it.
    p_source = tl.cast(source_address, tl.int64).to(tl.pointer_type(tl.int32))
    words = tl.load(tl.multiple_of(p_source + i_word, [1, 16]), mask=m_unit)
    tl.store(p_rows + i_word, words, mask=m_unit)
    if is_last_program(p_count):
        number = tl.load(p_counter) if IS_STREAM else tl.cast(given_number, tl.int64)
        answer, header = tl.cast(answer_address, tl.int64), tl.cast(header_address, tl.int64)
        is_good = is_answered(answer, tl.cast(state_address, tl.int64), number)
        tl.store(p_verdict, is_good.to(tl.int64))
        if is_good == 0:
            keep_failure(p_failure, answer, number, i_layer)
        lower_flag(answer, header, number, RELEASES)


def bring_by_kernel(
    slot: DeviceSlot, layer: int, number: int, num_rows: int, *, releases: bool
) -> torch.Tensor:
    """Copies a layer's rows, behind its flag, and settles its answer, on the current stream.

    Returns:
        uint8 [num_rows * row_bytes] on the device; the verdict is in `slot.verdicts[layer]`.
    """
    rows = slot.rows(layer, num_rows)
    num_units = -(-rows.numel() // _UNIT)
    brought = torch.empty(_UNIT * num_units, dtype=torch.uint8, device=slot.device)
    bring_kernel[(max(1, triton.cdiv(num_units, _BLOCK_UNITS)),)](
        brought.view(torch.int32),
        slot.rows_address(layer),
        slot.counter,
        slot.take_programs[layer],
        slot.verdicts[layer],
        slot.failure,
        slot.answer_address(layer),
        slot.state_address(layer, number),
        slot.header_address,
        num_units,
        number,
        layer,
        IS_STREAM=slot.is_stream,
        RELEASES=releases,
        BU=_BLOCK_UNITS,
    )
    return brought[: rows.numel()]


def bring_by_copies(
    slot: DeviceSlot, layer: int, number: int, num_rows: int, streams: Streams
) -> torch.Tensor:
    """Copies a layer's rows by the copy engine, part by part in the host lane.

    The layer's flag must be awaited afterwards; in a stream's slot, before.

    Returns:
        uint8 [num_rows * row_bytes] on the device.
    """
    rows = slot.rows(layer, num_rows)
    brought = torch.empty_like(rows, device=slot.device)
    num_copies = 1 if slot.is_stream else copies_of(num_rows)
    begin = 0
    for copy in range(1, num_copies + 1):
        part = copy * PARTS // num_copies
        if not slot.is_stream:
            streams.wait(slot.progress_address(layer), progress_of(number, part))
        end = num_rows * part // PARTS
        brought[begin:end].copy_(rows[begin:end], non_blocking=True)
        begin = end
    return brought.flatten()


def copies_of(num_rows: int) -> int:
    """Returns into how many copies so many rows are divided: a power of two up to PARTS."""
    return min(PARTS, 1 << max(0, (num_rows // _ROWS_A_COPY).bit_length() - 1))


__all__ = ["bring_by_copies", "bring_by_kernel", "bring_kernel", "copies_of"]
