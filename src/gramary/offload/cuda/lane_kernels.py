"""Every kernel that the lanes of a connector launch, loaded for the arguments that they come with.

The sizes of a batch choose between few kernels: in place or copied, one of two tiles. Results of
the table's default dtype are loaded; those of another, and buffers that do not begin at a multiple
of 16 bytes, are loaded by their first launch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from gramary.flat_batch import TOKEN_DTYPES, FlatBatch
from gramary.model.codecs import Codec
from gramary.native.rows import RowExtent
from gramary.offload.cuda import take
from gramary.offload.cuda.loading import load
from gramary.offload.cuda.request import write_request
from gramary.offload.cuda.slots import DeviceSlot, DeviceSlots
from gramary.ops._triton.hash import HashConstants


def load_request_kernels(
    slots: DeviceSlots,
    constants: Sequence[HashConstants],
    extents: Sequence[RowExtent],
    history_length: int,
) -> None:
    """Loads what writes a request of the stream lane: any token dtypes, with a history and without.

    Args:
        slots: the slots of the connector.
        constants: hash constants of each table.
        extents: the rows of each table in the device's own memory.
        history_length: columns of a history.
    """
    if not slots.stream:
        return
    last = len(constants) - 1
    batches = list(_batches(slots.stream[0], history_length))
    for table_index, batch in itertools.product(range(last + 1), batches):
        write_request(
            slots.stream[0],
            table_index,
            constants[table_index],
            batch,
            device_extent=extents[table_index],
            is_last_table=table_index == last,
            launch=load,
        )


def load_take_kernels(
    slots: DeviceSlots,
    codecs: Sequence[Codec],
    extents: Sequence[RowExtent],
    max_rows: Sequence[int],
) -> None:
    """Loads what takes rows out of a slot of either lane, and what gives a slot up.

    Args:
        slots: the slots of the connector.
        codecs: how the rows of each table are encoded.
        extents: as for `load_request_kernels`.
        max_rows: most rows of each table in a batch.
    """
    # The slot is released behind the last table that is taken, which may be any.
    ways = (True, False) if len(codecs) > 1 else (True,)
    for slot, table_index, releases in itertools.product(
        _a_slot_each(slots), range(len(codecs)), ways
    ):
        codec = codecs[table_index]
        out = torch.empty(
            1, codec.output_width(None), dtype=codec.default_dtype, device=slot.device
        )
        for num_rows in _sizes(max_rows[table_index]):
            take.launch_take(
                slot, table_index, 1, codec, extents[table_index], out, num_rows=num_rows,
                releases=releases, launch=load,
            )  # fmt: skip
        for checks in (True, False):
            take.settle(slot, table_index, 1, checks=checks, releases=releases, launch=load)


def _a_slot_each(slots: DeviceSlots) -> Iterator[DeviceSlot]:
    for lane in (slots.host, slots.stream):
        yield from lane[:1]


def _sizes(max_rows: int) -> set[int]:
    """Returns numbers of rows, one for each kernel that a batch may be taken by."""
    sizes = {1, max_rows}
    if max_rows >= take.COPIED_FROM_ROWS:
        sizes.add(take.COPIED_FROM_ROWS)
    return sizes


def _batches(slot: DeviceSlot, history_length: int) -> Iterator[FlatBatch]:
    starts = torch.zeros(2, dtype=torch.int32, device=slot.device)
    for dtype in TOKEN_DTYPES:
        tokens = torch.zeros(8, dtype=dtype, device=slot.device)
        yield FlatBatch(tokens, starts, None)
        for history_dtype in TOKEN_DTYPES:
            shape = (1, history_length)
            history = torch.zeros(shape, dtype=history_dtype, device=slot.device)
            yield FlatBatch(tokens, starts, history)


__all__ = ["load_request_kernels", "load_take_kernels"]
