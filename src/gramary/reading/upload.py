"""The CPU path to a GPU: ids on the host, rows gathered by threads, one copy up, decoded there.

Pieces of a batch go through a ring of pinned slots, so that the threads gather the next piece
while the last one is copied. A small batch sends its ids up instead and lets the GPU read over
the bus; from how many rows on the threads are faster is measured when the table is opened.
"""

from __future__ import annotations

import dataclasses
import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from gramary.errors import UnsupportedError
from gramary.flat_batch import FlatBatch
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.native import rows as native_rows
from gramary.ops._cpu import hash as cpu_hash
from gramary.ops._triton import decode as decode_op
from gramary.ops._triton import embed as embed_op
from gramary.ops.extents import Extents
from gramary.reading.arguments import require_row_ids
from gramary.reading.launch_counts import LaunchCounts
from gramary.tiers.base import Tier
from gramary.tiers.registration import CudaHostRegistry
from gramary.tiers.residency import Residency
from gramary.tiers.staging import Staging

logger = logging.getLogger("gramary")

NUM_SLOTS = 4
SLOT_BYTES = 8 << 20

# Rows of the batches that are timed to find out from where on threads are faster.
MEASURED_ROWS = (256, 1024, 4096, 16384)
NUM_MEASURED = 5


@dataclasses.dataclass(frozen=True)
class UploadTarget:
    """What rows are brought up for.

    Attributes:
        spec: geometry of the table.
        codec: encoding of its rows.
        residency: where this rank's rows are.
        device: the CUDA device that reads.
        extents: the rows that it can read by itself.
        error: its sticky error tensor.
    """

    spec: HashSpec
    codec: Codec
    residency: Residency
    device: torch.device
    extents: Extents
    error: torch.Tensor


class Uploader:
    """Brings rows whose ids are known on the host to a GPU; from any number of threads, in turn.

    Args:
        target: what the rows are for.
        gather_from_rows: rows from which on threads gather host rows that the GPU could read;
            None measures it.

    Attributes:
        gather_from_rows: the same, as it was given or measured.
    """

    def __init__(self, target: UploadTarget, gather_from_rows: int | None) -> None:
        self._target = target
        self._host = target.residency.host_extent
        self._counts = LaunchCounts(target.residency)
        # Only the rows in the GPU's own memory: the threads bring the others.
        self._own_extents = Extents(target.spec.num_rows, target.extents.device)
        self._turn = threading.Lock()
        # Reused, so that no call pays for fresh pages.
        self._row_ids = torch.empty(0, dtype=torch.int64, device="cpu")
        self._staging: Staging | None = None
        if not target.extents.host.num_rows:
            # Nothing to choose: rows in host memory, if any, are gathered.
            self.gather_from_rows = 0 if self._host.num_rows else 1 << 62
        elif gather_from_rows is not None:
            self.gather_from_rows = gather_from_rows
        else:
            self.gather_from_rows = self._measure()
            for tier in (target.residency.device, target.residency.host):
                if tier is not None:
                    # What was read to measure, no caller asked for.
                    tier.counts.reset()

    def lookup(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes rows of any tier.

        Args:
            row_ids: int64 [n] on the CPU, contiguous.
            out: [n, width] on the device, contiguous.

        Raises:
            RowIdError: an id lies outside the table; the message names the first.
            RowReadError: rows on disk cannot be read.
            UnsupportedError: the current stream is being captured.
        """
        _refuse_capture()
        require_row_ids(row_ids, self._target.spec.num_rows)
        with self._turn:
            self._place(row_ids, out)

    def embed(self, batch: FlatBatch, out: torch.Tensor) -> None:
        """Writes the rows of a flat batch on the CPU to `out` [T, num_heads * width].

        Raises:
            TokenError: a token lies outside the vocabulary; the message names the first.
            RowReadError, UnsupportedError: as `lookup`.
        """
        _refuse_capture()
        shape = (batch.token_ids.numel(), self._target.spec.num_heads)
        num_rows = shape[0] * shape[1]
        with self._turn:
            if self._row_ids.numel() < num_rows:
                self._row_ids = torch.empty(num_rows, dtype=torch.int64, device="cpu")
            row_ids = self._row_ids[:num_rows]
            cpu_hash.ngram_ids(self._target.spec, batch, row_ids.view(shape))
            self._place(row_ids, out.view(num_rows, -1))

    def lay_over(self, row_ids: torch.Tensor, tiers: Sequence[Tier], out: torch.Tensor) -> None:
        """Writes the rows of some tiers over the zero rows that stand for them.

        Args:
            row_ids: int64 [n] on the CPU, contiguous.
            tiers: host or disk tiers.
            out: [n, width] on the device, contiguous.
        """
        with self._turn:
            self._lay_over(row_ids, tiers, out)

    def close(self) -> None:
        """Gives the staging memory back; no copy may be under way."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    def _place(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes all rows, by the way that is faster for so many."""
        if row_ids.numel() < self.gather_from_rows:
            self._read(row_ids, self._target.extents, out)
            if (disk := self._target.residency.disk) is not None:
                self._lay_over(row_ids, [disk], out)
        else:
            self._gather(row_ids, out)

    def _read(self, row_ids: torch.Tensor, extents: Extents, out: torch.Tensor) -> None:
        """Sends ids up and lets the device read; rows outside `extents` become zero rows."""
        target = self._target
        self._counts.count(row_ids.numel(), reads_host=extents.host.num_rows > 0)
        embed_op.lookup(self._sent(row_ids), extents, target.codec, out, target.error)

    def _gather(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Brings all rows but the device's own up."""
        if self._target.residency.device is None:
            self._bring(row_ids, None, out)
            return
        self._read(row_ids, self._own_extents, out)
        self._lay_over(row_ids, self._target.residency.beyond_device, out)

    def _lay_over(self, row_ids: torch.Tensor, tiers: Sequence[Tier], out: torch.Tensor) -> None:
        for tier in tiers:
            places, ids = native_rows.find_places(row_ids, tier.first_row, tier.end_row)
            if places.numel():
                self._bring(ids, places, out)

    def _bring(self, row_ids: torch.Tensor, places: torch.Tensor | None, out: torch.Tensor) -> None:
        """Gathers rows piece by piece, copies each up behind the others, decodes them at once."""
        row_bytes = self._target.codec.row_bytes
        shape = (row_ids.numel(), row_bytes)
        encoded = torch.empty(shape, dtype=torch.uint8, device=self._target.device)
        for first, rows in self._slots_for(row_ids.numel(), row_bytes):
            end = first + rows.shape[0]
            self._gather_piece(row_ids[first:end], rows)
            encoded[first:end].copy_(rows, non_blocking=True)
        positions = None if places is None else self._sent(places)
        decode_op.decode(encoded, self._target.codec, out, positions)

    def _gather_piece(self, row_ids: torch.Tensor, rows: torch.Tensor) -> None:
        native_rows.gather(row_ids, self._host, rows.shape[1], rows, is_sent_on=True)
        disk = self._target.residency.disk
        if disk is None:
            return
        places, ids = native_rows.find_places(row_ids, disk.first_row, disk.end_row)
        if places.numel():
            read = torch.empty(places.numel(), rows.shape[1], dtype=torch.uint8, device="cpu")
            disk.gather(ids, read)
            native_rows.decode("fp8", rows.shape[1], 1.0, read, rows, places)

    def _sent(self, values: torch.Tensor) -> torch.Tensor:
        """Returns int64 [n] of the CPU on the device, without waiting for the device."""
        on_device = torch.empty_like(values, device=self._target.device)
        for first, slot in self._slots_for(values.numel(), 8):
            piece = slot.view(torch.int64).view(-1)
            # By numpy: torch would start its own threads, and they fight ours for the cores.
            np.copyto(piece.numpy(), values[first : first + piece.numel()].numpy())
            on_device[first : first + piece.numel()].copy_(piece, non_blocking=True)
        return on_device

    def _slots_for(self, count: int, width: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields (first, slot uint8 [k, width]) until `count` items had a place; after each
        turn of the caller's loop its slot counts as under way."""
        if self._staging is None:
            registry = CudaHostRegistry(self._target.device.index)
            slot_bytes = max(SLOT_BYTES, -(-width // 4096) * 4096)
            self._staging = Staging(NUM_SLOTS, slot_bytes, self._target.device, registry)
        step = self._staging.slot_bytes // width
        for first in range(0, count, step):
            num_items = min(step, count - first)
            yield first, self._staging.slot()[: num_items * width].view(num_items, width)
            self._staging.sent()

    def _measure(self) -> int:
        """Returns the fewest measured rows that threads bring up faster than the GPU reads."""
        host = self._host
        for num_rows in MEASURED_ROWS:
            offsets = torch.randint(0, host.num_rows, (num_rows,), dtype=torch.int64, device="cpu")
            row_ids = host.first_row + offsets
            width, dtype = self._target.codec.row_dim, self._target.codec.default_dtype
            out = torch.empty(num_rows, width, dtype=dtype, device=self._target.device)
            read_us = _median_us(self._read, row_ids, self._target.extents, out)
            gather_us = _median_us(self._bring, row_ids, None, out)
            logger.debug("%d host rows: read %.0f us, gather %.0f us", num_rows, read_us, gather_us)
            if gather_us < read_us:
                return num_rows
        return 2 * MEASURED_ROWS[-1]


def _median_us(work: Callable[..., None], *arguments: object) -> float:
    """Returns the median time of a call on the current device, start to end."""
    times = []
    for turn in range(NUM_MEASURED + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work(*arguments)
        torch.cuda.synchronize()
        if turn:
            # The first turn compiles and touches memory.
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def _refuse_capture() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            "ids and tokens on the host cannot be looked up while a CUDA graph is captured; "
            "capture a gramary.Connector's wait, or pass tensors on the device"
        )
