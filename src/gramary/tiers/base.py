"""The contract of a tier: one place that holds one extent of a table's rows.

Order of calls: construct (all storage is taken here, or nothing is) → `write`, or fill
`rows_in_place`, any number of times while loading → `finish_writing` → `gather` from any number of
threads → `close` once no other call is running. A tier that `is_filled` from the start is not
written.
Row numbers are the table's own, never relative to the extent. A tier of no rows is never built.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping

import torch

from gramary.errors import ArgumentError
from gramary.process.bound import ProcessBound


class Tier(abc.ABC, ProcessBound):
    """One place that holds rows first_row .. first_row + num_rows - 1, encoded.

    Attributes:
        name: "device", "host" or "disk" (or "fake" in tests).
        first_row: the table's row number of the first row held.
        num_rows: how many rows are held, at least 1.
        row_bytes: bytes of one encoded row.
        is_filled: whether the rows are there already and must not be written (another process
            filled memory that is shared).
    """

    remedy = "its rows lie where this process put them; hand Table.stats() or the table on instead"

    name: str
    is_filled = False

    def __init__(self, first_row: int, num_rows: int, row_bytes: int) -> None:
        if first_row < 0 or num_rows < 1 or row_bytes < 1:
            raise ArgumentError(
                f"a tier needs first_row >= 0, num_rows >= 1 and row_bytes >= 1, got "
                f"{first_row}, {num_rows} and {row_bytes}"
            )
        self.first_row = first_row
        self.num_rows = num_rows
        self.row_bytes = row_bytes

    @functools.cached_property
    def end_row(self) -> int:
        """One past the last row held."""
        return self.first_row + self.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the rows held."""
        return self.num_rows * self.row_bytes

    @abc.abstractmethod
    def write(self, first_row: int, rows: torch.Tensor) -> None:
        """Stores rows first_row .. first_row + len(rows) - 1; only while loading.

        Args:
            first_row: the table's number of the first row written.
            rows: uint8 [n, row_bytes], contiguous, all of them rows of this tier.

        Raises:
            UnsupportedError: this tier reads its rows from files and cannot be written.
        """

    def rows_in_place(self) -> torch.Tensor | None:
        """Returns the tier's own memory, uint8 [num_rows, row_bytes] on the CPU, for a reader to
        fill while loading; None where rows come by `write` alone. Valid until `close`."""
        return None

    def finish_writing(self) -> None:
        """Ends loading: called once, when every row was written; not where `is_filled`."""

    @abc.abstractmethod
    def gather(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Fills `out` with the encoded rows of `row_ids`; safe from any number of threads.

        Args:
            row_ids: int64 [n] on the CPU, contiguous, every one a row of this tier.
            out: uint8 [n, row_bytes] on the CPU, rows contiguous.

        Raises:
            RowReadError: rows had to be read from a file and that failed.
        """

    @abc.abstractmethod
    def stats(self) -> Mapping[str, int | float | str]:
        """Returns a snapshot of this tier's counters and facts, by name."""

    @abc.abstractmethod
    def close(self) -> None:
        """Gives all storage, descriptors and threads back; a second call does nothing."""

    def check_integrity(self) -> None:
        """Raises a GramaryError where what the tier holds is no longer what was loaded."""
