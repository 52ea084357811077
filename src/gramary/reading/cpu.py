"""Reading rows to the CPU: host rows by the native core, disk rows laid over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.native.rows import NO_ROWS, RowExtent, find_places
from gramary.ops._cpu import embed as cpu_backend
from gramary.ops.hash import ngram_ids
from gramary.reading.base import TableReader
from gramary.tiers.base import Tier
from gramary.tiers.host import HostTier


class CpuReader(TableReader):
    """Reads rows of host and disk tiers into CPU tensors.

    Args:
        spec: geometry of the table.
        codec: encoding of its rows.
        tiers: the tiers that hold this rank's rows; they must outlive the reader.
    """

    def __init__(self, spec: HashSpec, codec: Codec, tiers: Sequence[Tier]) -> None:
        self._spec = spec
        self._codec = codec
        self._extent = host_extent(tiers)
        self._others = tuple(tier for tier in tiers if not isinstance(tier, HostTier))

    def lookup(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows of `row_ids` [n] to `out` [n, width]; see `TableReader`."""
        row_ids = row_ids.to(torch.int64)
        cpu_backend.lookup(self._codec, row_ids, self._extent, self._spec.num_rows, out)
        self._lay_over(row_ids, out)

    def embed(
        self,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        history: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """Writes the rows of a flat batch to `out` [T, num_heads * width]; see `TableReader`."""
        batch = (token_ids, query_start_loc, history)
        if not self._others:
            cpu_backend.embed(self._spec, self._codec, *batch, self._extent, out)
            return
        row_ids = ngram_ids(self._spec, *batch)
        self.lookup(row_ids.view(-1), out.view(row_ids.numel(), -1))

    def check(self) -> None:
        """Does nothing: on the CPU every call raises its own errors."""

    def close(self) -> None:
        """Does nothing: the reader holds nothing of its own."""

    def _lay_over(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows that are not in memory over the zero rows that stand for them."""
        for tier in self._others:
            places, ids = find_places(row_ids, tier.first_row, tier.end_row)
            if places.numel():
                encoded = torch.empty(
                    places.numel(), tier.row_bytes, dtype=torch.uint8, device="cpu"
                )
                tier.gather(ids, encoded)
                cpu_backend.decode(self._codec, encoded, out, places)


def host_extent(tiers: Sequence[Tier]) -> RowExtent:
    """Returns the rows that lie in host memory, as the native core takes them."""
    for tier in tiers:
        if isinstance(tier, HostTier):
            return RowExtent(tier.rows.data_ptr(), tier.first_row, tier.num_rows)
    return NO_ROWS
