"""Encoded rows of a slot, copied to device memory by the copy engine.

In the host lane they are copied part by part, each behind its share of the progress word, while
the rest is gathered. What was copied is judged afterwards, by the answer.
"""

from __future__ import annotations

import torch

from gramary.native.ring import RingFields, progress_of
from gramary.offload.cuda.slots import DeviceSlot
from gramary.offload.cuda.streams import Streams

# Rows of a copy that is worth its launch, and the wait before it.
_ROWS_A_COPY = 16384
_MAX_COPIES = 4


def bring_rows(
    slot: DeviceSlot, table_index: int, number: int, num_rows: int, streams: Streams
) -> torch.Tensor:
    """Copies a table's rows on the current stream, and waits for its flag.

    Returns:
        uint8 [num_rows, row_bytes] on the device.
    """
    rows = slot.rows(table_index, num_rows)
    brought = torch.empty_like(rows, device=slot.device)
    if slot.is_stream:
        streams.wait(slot.ready_address(table_index), 1)
        return brought.copy_(rows, non_blocking=True)
    num_copies = copies_of(num_rows)
    begin = 0
    for copy in range(1, num_copies + 1):
        part = copy * RingFields.PARTS // num_copies
        streams.wait(slot.progress_address(table_index), progress_of(number, part))
        end = num_rows * part // RingFields.PARTS
        brought[begin:end].copy_(rows[begin:end], non_blocking=True)
        begin = end
    streams.wait(slot.ready_address(table_index), 1)
    return brought


def copies_of(num_rows: int) -> int:
    """Returns into how many copies so many rows are divided: a power of two."""
    return min(_MAX_COPIES, 1 << max(0, (num_rows // _ROWS_A_COPY).bit_length() - 1))


__all__ = ["bring_rows", "copies_of"]
