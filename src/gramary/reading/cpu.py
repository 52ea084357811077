"""Reading rows to the CPU: host rows by the native core, disk rows laid over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gramary.codecs import Codec, decode_rows_ref
from gramary.errors import RowIdError
from gramary.hashing import HashSpec
from gramary.ops.hash import ngram_ids
from gramary.reading.base import TableReader, first_wrong_row_id
from gramary.tiers.base import Tier


class CpuReader(TableReader):
    """Reads rows of host and disk tiers into CPU tensors.

    Args:
        spec: geometry of the table.
        codec: encoding of its rows.
        tiers: the tiers that hold this rank's rows.
    """

    def __init__(self, spec: HashSpec, codec: Codec, tiers: Sequence[Tier]) -> None:
        self._spec = spec
        self._codec = codec
        self._tiers = tuple(tiers)

    def lookup(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows of `row_ids` [n] to `out` [n, width]; see `TableReader`."""
        wrong = first_wrong_row_id(row_ids, self._spec.num_rows)
        if wrong is not None:
            raise RowIdError(
                f"row_ids[{wrong}]: expected -1 (no row) or a row from 0 to "
                f"{self._spec.num_rows - 1}, got {int(row_ids[wrong])}"
            )
        self._read(row_ids, out)

    def embed(
        self,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        history: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """Writes the rows of a flat batch to `out` [T, num_heads * width]; see `TableReader`."""
        row_ids = ngram_ids(self._spec, token_ids, query_start_loc, history)
        self._read(row_ids.view(-1), out.view(row_ids.numel(), -1))

    def check(self) -> None:
        """Does nothing: on the CPU every call raises its own errors."""

    def close(self) -> None:
        """Does nothing: the reader holds nothing of its own."""

    def _read(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        encoded = torch.zeros(row_ids.numel(), self._codec.row_bytes, dtype=torch.uint8)
        for tier in self._tiers:
            places = ((row_ids >= tier.first_row) & (row_ids < tier.end_row)).nonzero().view(-1)
            if places.numel():
                rows = torch.empty(places.numel(), tier.row_bytes, dtype=torch.uint8)
                tier.gather(row_ids[places], rows)
                encoded[places] = rows
        out.copy_(decode_rows_ref(self._codec, encoded, out.dtype))
