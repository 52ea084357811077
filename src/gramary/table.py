"""The table: rows wherever they were placed, read by row ids or by tokens."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import torch

from gramary.arguments import require_type
from gramary.errors import LoadError
from gramary.files.layout import TableSource
from gramary.files.source import open_source
from gramary.flat_batch import FlatBatch
from gramary.lifetime import Closable, Closing, Lifetime, calls_without_object
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.ops import opaque
from gramary.ops.result_buffer import refuse_overlap
from gramary.placement.grammar import format_bytes, parse_placement
from gramary.placement.plan import Placement, require_fitting
from gramary.process.descriptor_limit import naming_shortage
from gramary.reading import compiled
from gramary.reading.arguments import flat_row_ids, is_traced, require_device, result_buffer
from gramary.reading.late import LateReader
from gramary.settings import Settings, chosen_settings
from gramary.stats import CallCounter, TableStats, TierStats
from gramary.storage.allocation import StorageRequest, plan_storage, resolve_device, share_key
from gramary.storage.descriptor_needs import num_descriptors
from gramary.storage.reopening import OpenRecipe, require_reopenable
from gramary.storage.row_store import Progress, RowStore
from gramary.tiers.base import Tier
from gramary.tiers.residency import Residency

logger = logging.getLogger("gramary")


class Table(Closing):
    """A hashed n-gram embedding table (or one rank's shard of it), open for reading.

    Made by `Table.open` from files, or by `Table.empty` and loaded shard by shard. Lookups may
    run on any number of threads; `close` waits for them. Rows carry no gradient.

    A copy, deep or not, is the table itself. A pickle of one that was opened by a path, with its
    rows on disk or shared, opens it again in another process; any other is refused.

    Attributes:
        spec: geometry and hash constants.
        codec: encoding of the rows.
        device: where results lie.
        handle: number that stands for the table in compiled graphs.
    """

    def __init__(self, store: RowStore) -> None:
        self.spec: HashSpec = store.request.spec
        self.codec: Codec = store.request.codec
        self.device: torch.device = store.request.device
        self._store = store
        self._life = Lifetime("table")
        self._calls = CallCounter()
        self._reader = LateReader(store)
        self.handle: int = opaque.register(self)
        # Set where the table can be opened again by a path.
        self._recipe: OpenRecipe | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        placement: str = "host",
        device: str | torch.device | None = None,
        table_index: int | None = None,
        kv_bytes: int = 0,
        shard: tuple[int, int] = (0, 1),
        shard_by: str = "rows",
        share: str | None = None,
        settings: Settings | None = None,
        progress: Progress | None = None,
    ) -> Table:
        """Returns a table of a model's folder or a pack, loaded and ready.

        Everything about the files is checked before a row is read. Rows for device and host are
        streamed; rows on disk stay where they are.

        Args:
            path: a model's folder, or a pack file.
            placement: where rows go, in the grammar of `plan_placement`; sizes are per rank.
            device: where results lie; None is the CPU, or the current CUDA device if a tier is
                `device`.
            table_index: dense index among the PLE layers; needed where there are several.
            kv_bytes: device bytes that `device=auto` leaves free for caches.
            shard: (rank, number of ranks): the part of the table to hold.
            shard_by: "rows" or "heads", see `plan_placement`.
            share: name under which processes of this user share the host rows: the first one
                fills them, the others wait and map them; `gramary prune` frees what is unused.
            settings: None takes them from the environment.
            progress: called with (bytes done, bytes in all) while rows are read.

        Raises:
            CheckpointError, PackError: the files are wrong.
            PlacementError: the placement does not parse, cannot be honoured, or does not fit.
            RowReadError: a file cannot be read.
            DescriptorLimitError: fewer file descriptors may be open than it needs.
            ArgumentError: an argument is out of its range.
        """
        with calls_without_object.using():
            source = open_source(path, table_index)
            options: dict[str, Any] = {
                "placement": placement,
                "device": device,
                "kv_bytes": kv_bytes,
                "shard": shard,
                "shard_by": shard_by,
                "share": share,
                "settings": settings,
            }
            recipe = OpenRecipe(os.path.abspath(path), table_index, source.model_id, options)
            return cls._open_by(recipe, source, progress)

    @classmethod
    def from_source(
        cls,
        source: TableSource,
        *,
        placement: str = "host",
        device: str | torch.device | None = None,
        kv_bytes: int = 0,
        shard: tuple[int, int] = (0, 1),
        shard_by: str = "rows",
        share: str | None = None,
        settings: Settings | None = None,
        progress: Progress | None = None,
    ) -> Table:
        """Returns a table that was found in files before, loaded and ready.

        Args:
            source: what `gramary.files.source.open_source` found; its files must be unchanged.
            placement: as for `open`, like all that follow.

        Raises:
            GramaryError: as `open`.
        """
        settings = chosen_settings(settings)
        request = StorageRequest(
            spec=source.spec,
            codec=source.codec,
            placement=placement,
            device=resolve_device(device, placement),
            kv_bytes=kv_bytes,
            shard=shard,
            shard_by=shard_by,
            settings=settings,
            layout=source.layout,
            share=share_key(share, source, settings),
        )
        table = cls(RowStore(request))
        try:
            with table._life.using(), naming_shortage("open the table", table._num_descriptors):
                table._store.load_files(progress)
                table._reader.get()
        except BaseException:
            table.close()
            raise
        logger.info("see this again: gramary plan %s --placement %s", source.path, placement)
        return table

    @classmethod
    def empty(
        cls,
        spec: HashSpec,
        codec: Codec,
        *,
        placement: str = "host",
        device: str | torch.device | None = None,
        kv_bytes: int = 0,
        shard: tuple[int, int] = (0, 1),
        shard_by: str = "rows",
        num_shards: int | None = None,
        settings: Settings | None = None,
    ) -> Table:
        """Returns a table that owns no storage yet; `load_shard` fills it.

        The placement is planned, by what is free then, when the first shard arrives.

        Args:
            spec: geometry of the table.
            codec: encoding of its rows.
            placement: as for `open`; it must leave no row on disk.
            device: as for `open`.
            kv_bytes: as for `open`.
            shard: as for `open`.
            shard_by: as for `open`.
            num_shards: shards that the checkpoint has; None derives it from the first shard that
                arrives, where that leaves no doubt.
            settings: None takes them from the environment.

        Raises:
            PlacementError: the placement does not parse or cannot be honoured.
            ArgumentError: an argument is out of its range, or the codec does not fit the spec.
        """
        require_type("spec", spec, HashSpec)
        require_type("codec", codec, Codec)
        require_fitting(spec, codec)
        request = StorageRequest(
            spec=spec,
            codec=codec,
            placement=placement,
            device=resolve_device(device, placement),
            kv_bytes=kv_bytes,
            shard=shard,
            shard_by=shard_by,
            settings=chosen_settings(settings),
        )
        if not request.depends_on_free_memory:
            plan_storage(request)
        return cls(RowStore(request, num_shards))

    def load_shard(
        self, index: int, rows: torch.Tensor, scales: torch.Tensor | None = None
    ) -> None:
        """Stores one shard of a checkpoint; the first one plans and allocates.

        Each row goes to the tier that owns it; rows of other ranks are dropped.

        Args:
            index: the shard's number, from 0; shards may come in any order.
            rows: the checkpoint's tensor [n, columns] in its own dtype, or encoded rows uint8
                [n, row_bytes]; on any device.
            scales: for nvfp4 only, the block scales [n, row_dim/16].

        Raises:
            ShardError: the shard has no place in the table, or its dtype or shape is wrong.
            ScaleError: nvfp4 rows come without block scales.
            LoadError: one of its rows was loaded before, or loading is over.
            PlacementError: as `open`.
        """
        with self._life.using(), naming_shortage("take the table's memory"):
            self._store.load_shard(index, rows, scales)

    def materialize(self) -> None:
        """Plans and allocates now, every row zero; the table can be read at once (dummy weights).

        Raises:
            LoadError: the table has its storage already.
            PlacementError: as `open`.
        """
        with self._life.using(), naming_shortage("take the table's memory"):
            self._store.materialize()
            self._reader.get()

    def finish_loading(self) -> None:
        """Ends loading: every row of this rank must have been stored exactly once.

        A table that was only materialized, with no shard loaded, keeps its zero rows.

        Raises:
            LoadError: rows are missing (the message names the first), or nothing was loaded.
        """
        with self._life.using():
            self._store.finish_loading()
            self._reader.get()

    def lookup(
        self,
        row_ids: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Returns rows by their ids.

        Args:
            row_ids: int32 or int64, any shape; -1, and rows of other ranks' shards, give zero
                rows and read nothing.
            out: result buffer of the result's shape and dtype on `device`, contiguous; it shares no
                memory with the arguments.
            dtype: bfloat16, float16, float32, or uint8 for encoded rows; None is `out`'s, or
                bfloat16 for bf16, fp8 and nvfp4 tables and the table's own for the others.

        Returns:
            [*row_ids.shape, row_dim] (uint8: [*row_ids.shape, row_bytes]) on `device`; `out` if
            given. On CUDA it is valid in the order of the current stream.

        Raises:
            RowIdError: on the CPU, an id lies outside the table; the message names the first. What
                `out` holds is then undefined.
            ArgumentError: a shape, dtype or device is wrong, or `out` shares memory with `row_ids`.
            RowReadError: rows on disk cannot be read.
            LoadError, ClosedError: the table is not loaded, or closed.
        """
        if is_traced(row_ids, out):
            return compiled.lookup(self, row_ids, out, dtype)
        with self._life.using():
            reader = self._reader.get()
            flat_ids = flat_row_ids(row_ids)
            require_device("row_ids", row_ids, self.device)
            result = result_buffer(self.codec, row_ids.shape, 1, self.device, out, dtype)
            if out is not None:
                refuse_overlap(out, row_ids=row_ids)
            if flat_ids.numel():
                started = time.perf_counter()
                reader.lookup(flat_ids, result.view(flat_ids.numel(), -1))
                self._calls.add(flat_ids.numel(), time.perf_counter() - started)
            return result

    def embed(
        self,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        history: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Returns the concatenated rows of every token of a flat batch.

        Args:
            token_ids: int32 or int64 [T], the requests' tokens back to back; tokens at or beyond
                query_start_loc[-1] are padding and give zero rows.
            query_start_loc: int32 [R+1] on the same device, from 0, never falling.
            history: int32 or int64 [R, ngram_size-1] on the same device, oldest first, missing
                tokens EOS; None is all missing. That of a request without tokens is not read.
            out: result buffer as for `lookup`.
            dtype: as for `lookup`.

        Returns:
            [T, num_heads * row_dim] (uint8: [T, num_heads * row_bytes]) on `device`; `out` if
            given. On CUDA it is valid in the order of the current stream.

        Raises:
            TokenError: on the CPU, a token lies outside the vocabulary; the message names the
                first. What `out` holds is then undefined.
            ArgumentError, RowReadError, LoadError, ClosedError: as `lookup`.
        """
        if is_traced(token_ids, query_start_loc, history, out):
            # What looks on sees tensors, so they pass one by one.
            tensors = (token_ids, query_start_loc, history)
            return compiled.embed(self, tensors, out, dtype)
        with self._life.using():
            reader = self._reader.get()
            batch = FlatBatch.checked(self.spec.history_length, token_ids, query_start_loc, history)
            require_device("token_ids", token_ids, self.device)
            shape, num_heads = token_ids.shape, self.spec.num_heads
            result = result_buffer(self.codec, shape, num_heads, self.device, out, dtype)
            if out is not None:
                refuse_overlap(
                    out, token_ids=token_ids, query_start_loc=query_start_loc, history=history
                )
            if token_ids.numel():
                started = time.perf_counter()
                reader.embed(batch, result)
                self._calls.add(token_ids.numel() * num_heads, time.perf_counter() - started)
            return result

    @property
    def placement(self) -> Placement:
        """Where the rows are.

        Raises:
            LoadError: nothing is planned before the first shard arrives.
        """
        if self._store.placement is None:
            raise LoadError("placement: planned when the first shard arrives, and none has")
        return self._store.placement

    @property
    def gather_from_rows(self) -> int | None:
        """Rows a batch from which CPU threads bring host rows to the GPU faster than it reads them.

        Measured when the table is loaded, unless `host_gather_rows` is set; None on the CPU.
        """
        return self._reader.get().gather_from_rows

    @property
    def residency(self) -> Residency:
        """Where this rank's rows are, by tier; nowhere before storage is taken."""
        return self._store.residency

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers that hold this rank's rows, in their order; none before storage is taken."""
        return self._store.residency.tiers

    def stats(self, *, check: bool = True) -> TableStats:
        """Returns a snapshot of counters.

        Args:
            check: whether first to raise what `check` would. Whoever only watches the table leaves
                that to its users.
        """
        with self._life.using():
            if check:
                self._reader.check()
            tiers = tuple(
                TierStats(tier.name, tier.num_rows, tier.nbytes, tier.stats())
                for tier in self.tiers
            )
            return TableStats(*self._calls.totals(), tiers)

    def check(self) -> None:
        """Raises the first wrong id or token that a GPU met since the last check.

        Raises:
            RowIdError, TokenError: a CUDA call met one; its rows were NaN.
        """
        with self._life.using():
            self._reader.check()

    def check_integrity(self) -> None:
        """Compares what the tiers hold with the files they came from, in samples.

        Raises:
            GramaryError: a file was changed since it was opened, or rows differ from it.
        """
        with self._life.using(), naming_shortage("compare the table with its files"):
            self._store.check_integrity()

    def __repr__(self) -> str:
        """Returns the encoding, and where the rows are, in one line."""
        where = [
            f"{tier.num_rows:,} rows ({format_bytes(tier.nbytes)}) {tier.name}"
            for tier in self.tiers
        ]
        if self._life.closed:
            where = ["closed"]
        elif not self._store.is_readable:
            where = ["not loaded"]
        return f"<gramary.Table {self.codec.name}: {', '.join(where)}>"

    def __copy__(self) -> Table:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Table:
        # Rows are never written, and closing is for all who hold the table.
        return self

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        with self._life.using():
            return Table._reopen, (require_reopenable(self._recipe, self._store.placement),)

    @classmethod
    def _reopen(cls, recipe: OpenRecipe) -> Table:
        """Returns a table of another process, opened again in this one.

        Raises:
            CheckpointError: other rows lie there now.
            GramaryError: as `open`.
        """
        return cls._open_by(recipe, recipe.find(), None)

    @classmethod
    def _open_by(cls, recipe: OpenRecipe, source: TableSource, progress: Progress | None) -> Table:
        table = cls.from_source(source, **recipe.options, progress=progress)
        table._recipe = recipe
        return table

    def close_first(self, user: Closable) -> None:
        """Has `close` close somebody who reads the rows' memory directly, before it is gone.

        Args:
            user: held weakly.

        Raises:
            LoadError, ClosedError: the table is not loaded, or closed.
        """
        with self._life.using():
            self._reader.get()
            self._life.close_first(user)

    def close(self) -> None:
        """Waits for running lookups and gives everything back; a second call does nothing.

        Connectors of this table are closed first. A call that was interrupted may be made again,
        and gives back what is left.

        Raises:
            RowIdError, TokenError: as `check`, once everything was given back.
        """
        self._life.close(self._give_back)

    def _num_descriptors(self) -> int:
        """Returns how many file descriptors the table needs beside those that were open before."""
        request, placement = self._store.request, self._store.placement
        assert request.layout is not None
        filled = [request.tier for request in parse_placement(request.placement)]
        if placement is not None:
            filled = [extent.tier for extent in placement.filled]
        return num_descriptors(request.layout, filled, request.settings)

    def _give_back(self) -> None:
        """Ends everything the table holds; may be called again where it was broken off."""
        try:
            self._reader.check()
        finally:
            self._reader.close()
            self._store.close()
