"""The rows of one table on their way into tiers: planned, allocated, written once, then read."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator

import torch

from gramary.errors import LoadError
from gramary.files.layout import RowLayout
from gramary.files.stream import read_in_order, read_rows, stream_rows
from gramary.native.instructions import cap_instructions
from gramary.native.threads import require_num_threads
from gramary.placement.plan import Placement, shard_range
from gramary.process.events import require_interpreter
from gramary.storage.allocation import StorageRequest, build_residency, plan_storage
from gramary.storage.shard_routing import LoadLedger, ShardOrder, route_rows
from gramary.storage.shard_rows import shard_rows
from gramary.tiers.base import Tier
from gramary.tiers.residency import Residency

logger = logging.getLogger("gramary")

# Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]

CHUNK_BYTES = 32 << 20

# Rows of each tier that an integrity check compares with the files.
NUM_SAMPLED_ROWS = 1024


class RowStore:
    """Placement and tiers of one table, and which of its rows were written.

    Life: planned and allocated by the first of `load_shard`, `load_files` and `materialize`;
    readable once every row was written exactly once (or after `materialize` alone).

    Args:
        request: what decides where the rows go.
        num_shards: shards of the checkpoint; None derives it.
    """

    def __init__(self, request: StorageRequest, num_shards: int | None = None) -> None:
        self.request = request
        self.placement: Placement | None = None
        self.residency = Residency()
        self.is_readable = False
        self._turn = threading.Lock()
        self._order = ShardOrder(request.spec.num_rows, num_shards)
        self._ledger = LoadLedger(*shard_range(request.spec, request.shard, request.shard_by))

    def load_shard(self, index: int, rows: torch.Tensor, scales: torch.Tensor | None) -> None:
        """Stores one shard; see `Table.load_shard`."""
        with self._turn:
            if self.is_readable and self._ledger.num_written:
                raise LoadError("load_shard: loading is over; open a new table instead")
            shard = shard_rows(self.request.codec, index, rows, scales)
            first_row, end_row = self._order.rows_of(index, shard.num_rows)
            self._ledger.check(first_row, end_row)
            try:
                self._require_storage()
                self.is_readable = False
                pieces = shard.pieces(0, shard.num_rows)
                self._write((first_row + first, piece) for first, piece in pieces)
                # Only now: a shard that was refused says nothing of the others.
                self._order.keep(index, shard.num_rows)
                self._ledger.add(first_row, end_row)
            except BaseException:
                self._drop_unused_storage()
                raise

    def load_files(self, progress: Progress | None = None) -> None:
        """Streams the rows of all tiers but disk from the files that hold them."""
        layout = self.request.layout
        if layout is None:
            raise AssertionError("a table without files is loaded by shards")
        with self._turn:
            self._allocate()
            in_memory = self.residency.in_memory
            done_bytes, all_bytes = 0, sum(tier.nbytes for tier in in_memory)
            for tier in in_memory:
                if tier.is_filled:
                    done_bytes += tier.nbytes
                    continue
                for num_bytes in _fill(tier, layout):
                    require_interpreter()
                    done_bytes += num_bytes
                    if progress is not None:
                        progress(done_bytes, all_bytes)
            for tier in self.residency.tiers:
                self._ledger.add(tier.first_row, tier.end_row)
            self._ledger.require_complete()
            self._make_readable()

    def materialize(self) -> None:
        """Plans and allocates, every row zero."""
        with self._turn:
            if self.placement is not None:
                raise LoadError("materialize: the table has its storage already")
            try:
                self._require_storage()
                self._make_readable()
            except BaseException:
                self._drop_unused_storage()
                raise

    def finish_loading(self) -> None:
        """Makes the rows readable; LoadError where one was not written."""
        with self._turn:
            if self.is_readable:
                return
            self._ledger.require_complete()
            try:
                # A rank that owns no row may have been given no shard.
                self._require_storage()
                self._make_readable()
            except BaseException:
                self._drop_unused_storage()
                raise

    def check_integrity(self) -> None:
        """Raises a GramaryError where a tier's rows or files are not what they were."""
        layout = self.request.layout
        for tier in self.residency.tiers:
            tier.check_integrity()
            if layout is not None and tier in self.residency.in_memory:
                _compare_with_files(tier, layout)

    def close(self) -> None:
        """Closes the tiers, the last first; all of them, whatever one of them raises."""
        with self._turn:
            self._give_back()

    def _require_storage(self) -> None:
        """Plans and allocates, unless that was done."""
        if self.placement is None:
            self._allocate()

    def _drop_unused_storage(self) -> None:
        """Gives storage back in which there is nothing yet, behind a call that was broken off."""
        if not self.is_readable and not self._ledger.num_written:
            self.placement = None
            self._give_back()

    def _give_back(self) -> None:
        """Closes the tiers; may be called again where it was broken off."""
        self.is_readable = False
        with contextlib.ExitStack() as closing:
            for tier in self.residency.tiers:
                closing.callback(tier.close)
        # Not before: a call that is broken off above is made again.
        self.residency = Residency()

    def _allocate(self) -> None:
        require_num_threads(self.request.settings.num_threads)
        cap_instructions(self.request.settings.instructions)
        placement = plan_storage(self.request)
        self.residency = build_residency(self.request, placement)
        self.placement = placement
        for line in placement.report():
            logger.info("%s", line)

    def _make_readable(self) -> None:
        for tier in self.residency.in_memory:
            if not tier.is_filled:
                tier.finish_writing()
        self.is_readable = True

    def _write(self, pieces: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Writes encoded rows to the tiers that own them; rows of other ranks are dropped."""
        for first_row, rows in pieces:
            end_row = first_row + rows.shape[0]
            for tier, first, end in route_rows(first_row, end_row, self.residency.tiers):
                tier.write(first, rows[first - first_row : end - first_row])


def _fill(tier: Tier, layout: RowLayout) -> Iterator[int]:
    """Brings a tier's rows in from their files, straight into its memory where they can be read
    there; yields the bytes of each chunk."""
    chunk_bytes = _chunk_bytes(layout)
    if (rows_in_place := tier.rows_in_place()) is not None:
        yield from read_in_order(layout, tier.first_row, rows_in_place, chunk_bytes=chunk_bytes)
        return
    for first_row, rows in stream_rows(
        layout, tier.first_row, tier.end_row, chunk_bytes=chunk_bytes
    ):
        tier.write(first_row, rows)
        yield rows.numel()


def _chunk_bytes(layout: RowLayout) -> int:
    """Returns the bytes to stream at a time: at most a shard, so that loading stays that small."""
    return min(CHUNK_BYTES, max(run.num_rows for run in layout.runs) * layout.row_bytes)


def _compare_with_files(tier: Tier, layout: RowLayout) -> None:
    """Compares rows spread over a tier, its first and last among them, with the files."""
    num_sampled = min(NUM_SAMPLED_ROWS, tier.num_rows)
    steps = torch.arange(num_sampled, dtype=torch.int64, device="cpu")
    row_ids = tier.first_row + steps * (tier.num_rows - 1) // max(1, num_sampled - 1)
    held = torch.empty(num_sampled, tier.row_bytes, dtype=torch.uint8, device="cpu")
    tier.gather(row_ids, held)
    stored = torch.empty(1, tier.row_bytes, dtype=torch.uint8, device="cpu")
    for row_id, row in zip(row_ids.tolist(), held, strict=True):
        read_rows(layout, row_id, 1, stored)
        if not torch.equal(stored[0], row):
            raise LoadError(
                f"row {row_id:,} in the {tier.name} tier differs from the files; the files were "
                "changed, or memory was overwritten"
            )
