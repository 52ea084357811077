"""What a table needs to read rows: two calls on checked arguments."""

from __future__ import annotations

import abc

import torch

from gramary.flat_batch import FlatBatch


class TableReader(abc.ABC):
    """Reads rows of one table into results on the table's device, from any number of threads.

    Arguments are checked by the table: shapes, dtypes, devices and contiguity; the reader checks
    numbers (row ids and tokens), as its device allows.

    Attributes:
        gather_from_rows: rows a batch from which CPU threads bring host rows to a GPU faster than
            it reads them; None where no GPU reads.
    """

    gather_from_rows: int | None = None

    @abc.abstractmethod
    def lookup(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows of `row_ids`.

        Args:
            row_ids: int32 or int64 [n], contiguous; -1 and rows of other shards give zero rows.
            out: [n, width] in an output dtype, contiguous, on the table's device.

        Raises:
            RowIdError: on the CPU, an id lies outside the table.
            RowReadError: rows on disk cannot be read.
        """

    @abc.abstractmethod
    def embed(self, batch: FlatBatch, out: torch.Tensor) -> None:
        """Writes the rows of a flat batch.

        Args:
            batch: on the CPU or the table's device.
            out: [T, num_heads * width] in an output dtype, contiguous, on the table's device.

        Raises:
            TokenError: on the CPU, a token lies outside the vocabulary.
            RowReadError: rows on disk cannot be read.
        """

    @abc.abstractmethod
    def check(self) -> None:
        """Raises the first error that an earlier call on a GPU left behind, once."""

    @abc.abstractmethod
    def close(self) -> None:
        """Gives back what the reader itself holds; the tiers are not its own."""
