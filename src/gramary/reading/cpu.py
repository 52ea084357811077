"""Reading rows to the CPU: host rows by the native core, disk rows laid over them."""

from __future__ import annotations

import torch

from gramary.errors import RowIdError
from gramary.flat_batch import FlatBatch
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.native import rows
from gramary.ops._cpu.hash import hasher, raise_fault
from gramary.reading.base import TableReader
from gramary.tiers.disk import DiskTier
from gramary.tiers.residency import Residency


class CpuReader(TableReader):
    """Reads rows of host and disk tiers into CPU tensors.

    Args:
        spec: geometry of the table.
        codec: encoding of its rows.
        residency: where this rank's rows are; it must outlive the reader.
    """

    def __init__(self, spec: HashSpec, codec: Codec, residency: Residency) -> None:
        self._spec = spec
        self._codec = codec
        self._hasher = hasher(spec)
        self._extent = residency.host_extent
        self._disk = residency.disk

    def lookup(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows of `row_ids` [n] to `out` [n, width]; see `TableReader`."""
        row_ids = row_ids.to(torch.int64)
        codec, num_rows = self._codec, self._spec.num_rows
        wrong = rows.lookup(
            codec.name, codec.row_dim, codec.scale, row_ids, self._extent, num_rows, out
        )
        if wrong is not None:
            raise RowIdError(
                f"row_ids[{wrong}]: expected -1 (no row) or a row from 0 to {num_rows - 1}, got "
                f"{int(row_ids[wrong])}"
            )
        if self._disk is not None:
            self._lay_over(self._disk, row_ids, out)

    def embed(self, batch: FlatBatch, out: torch.Tensor) -> None:
        """Writes the rows of a flat batch to `out` [T, num_heads * width]; see `TableReader`."""
        codec = self._codec
        if self._disk is None:
            fault = rows.embed(
                self._hasher, codec.name, codec.row_dim, codec.scale, batch, self._extent, out
            )
        else:
            num_rows = batch.token_ids.numel() * self._hasher.num_heads
            row_ids = torch.empty(num_rows, dtype=torch.int64, device="cpu")
            fault = self._hasher.ngram_ids(batch, row_ids)
            if fault is None:
                self.lookup(row_ids, out.view(num_rows, -1))
        if fault is not None:
            raise_fault(fault, self._spec, batch)

    def check(self) -> None:
        """Does nothing: on the CPU every call raises its own errors."""

    def close(self) -> None:
        """Does nothing: the reader holds nothing of its own."""

    def _lay_over(self, disk: DiskTier, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows that are not in memory over the zero rows that stand for them."""
        codec = self._codec
        places, ids = rows.find_places(row_ids, disk.first_row, disk.end_row)
        if places.numel():
            shape = (places.numel(), disk.row_bytes)
            encoded = torch.empty(shape, dtype=torch.uint8, device="cpu")
            disk.gather(ids, encoded)
            rows.decode(codec.name, codec.row_dim, codec.scale, encoded, out, places)
