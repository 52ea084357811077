"""Loading a table in shards, as pure functions: which rows a shard holds and who gets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from gramary.errors import ArgumentError, LoadError, ShardError


class HoldsRows(Protocol):
    """Anything that owns a run of rows: an extent or a tier."""

    @property
    def first_row(self) -> int:
        """The first row held."""

    @property
    def end_row(self) -> int:
        """One past the last row held."""


Holder = TypeVar("Holder", bound=HoldsRows)


def route_rows(
    first_row: int, end_row: int, holders: Iterable[Holder]
) -> Iterator[tuple[Holder, int, int]]:
    """Yields (holder, first row, end row) of the parts of a run; rows without a holder are dropped.

    Args:
        first_row: first row of the run.
        end_row: one past its last row.
        holders: owners of disjoint runs, such as a placement's extents.
    """
    for holder in holders:
        first, end = max(first_row, holder.first_row), min(end_row, holder.end_row)
        if first < end:
            yield holder, first, end


class ShardOrder:
    """Which rows the shards of a checkpoint hold: ceil(rows/shards) each, the last may be shorter.

    How many rows a full shard has follows from the first shard that leaves no doubt.

    Args:
        num_rows: rows of the whole table.
        num_shards: number of shards; None derives it from the shards themselves.
    """

    def __init__(self, num_rows: int, num_shards: int | None = None) -> None:
        if num_shards is not None and (type(num_shards) is not int or num_shards < 1):
            raise ArgumentError(
                f"num_shards: expected an integer of at least 1 or None, got {num_shards!r}"
            )
        self.num_rows = num_rows
        self._num_shards = num_shards
        self._rows_each = None if num_shards is None else max(1, -(-num_rows // num_shards))

    def rows_of(self, index: int, num_rows: int) -> tuple[int, int]:
        """Returns (first row, one past the last row) of a shard.

        Args:
            index: the shard's number, from 0.
            num_rows: rows it holds.

        Raises:
            ShardError: no table of this many rows has such a shard.
            LoadError: the shard alone does not tell its place.
        """
        if type(index) is not int or index < 0:
            raise ShardError(f"index: expected a shard number of at least 0, got {index!r}")
        if self._num_shards is not None and index >= self._num_shards:
            raise ShardError(
                f"index: expected a shard number below {self._num_shards}, got {index}"
            )
        rows_each = self._rows_each or self._derive(index, num_rows)
        first_row = min(index * rows_each, self.num_rows)
        expected = min(rows_each, self.num_rows - first_row)
        if num_rows != expected:
            raise ShardError(
                f"shard {index}: expected {expected:,} rows (rows {first_row:,} on of "
                f"{self.num_rows:,}, {rows_each:,} a shard), got {num_rows:,}"
            )
        return first_row, first_row + num_rows

    def keep(self, index: int, num_rows: int) -> None:
        """Lets a shard that was stored decide how many rows the others have."""
        if self._rows_each is None:
            self._rows_each = self._derive(index, num_rows)

    def _derive(self, index: int, num_rows: int) -> int:
        """Returns the rows of a full shard, given the first shard that arrives."""
        candidates = set()
        if num_rows and (index + 1) * num_rows <= self.num_rows:
            candidates.add(num_rows)
        as_last = -(-self.num_rows // (index + 1))
        if num_rows == self.num_rows - index * as_last:
            candidates.add(as_last)
        if len(candidates) == 2:
            raise LoadError(
                f"shard {index} of {num_rows:,} rows could be a full one or a shorter last one; "
                "load shard 0 first, or give Table.empty num_shards"
            )
        if not candidates:
            raise ShardError(
                f"shard {index}: no division of {self.num_rows:,} rows into equal shards has "
                f"one of {num_rows:,} rows there"
            )
        return candidates.pop()


class LoadLedger:
    """Which rows of a range were written, each exactly once.

    Args:
        first_row: first row of the range.
        end_row: one past its last row.
    """

    def __init__(self, first_row: int, end_row: int) -> None:
        self.first_row = first_row
        self.end_row = end_row
        # Disjoint runs (first, end), in order, none touching the next.
        self._written: list[tuple[int, int]] = []

    @property
    def num_written(self) -> int:
        """Rows written so far."""
        return sum(end - first for first, end in self._written)

    def check(self, first_row: int, end_row: int) -> None:
        """Raises LoadError where any of these rows was written before."""
        for first, end in self._written:
            if max(first, first_row) < min(end, end_row):
                raise LoadError(
                    f"rows {max(first, first_row):,} to {min(end, end_row) - 1:,} were loaded "
                    "before; each shard may be loaded once"
                )

    def add(self, first_row: int, end_row: int) -> None:
        """Notes rows as written; those outside the range are not counted.

        Raises:
            LoadError: one of them was written before.
        """
        first_row, end_row = max(first_row, self.first_row), min(end_row, self.end_row)
        if first_row >= end_row:
            return
        self.check(first_row, end_row)
        merged: list[tuple[int, int]] = []
        for first, end in sorted([*self._written, (first_row, end_row)]):
            if merged and merged[-1][1] == first:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((first, end))
        self._written = merged

    def missing(self) -> tuple[tuple[int, int], ...]:
        """Returns the runs (first row, one past the last) that were not written, in order."""
        row, gaps = self.first_row, []
        for first, end in (*self._written, (self.end_row, self.end_row)):
            if row < first:
                gaps.append((row, first))
            row = end
        return tuple(gaps)

    def require_complete(self) -> None:
        """Raises LoadError naming the first rows that were not written."""
        gaps = self.missing()
        if gaps:
            num_missing = sum(end - first for first, end in gaps)
            raise LoadError(
                f"{num_missing:,} rows were not loaded, the first of them rows {gaps[0][0]:,} to "
                f"{gaps[0][1] - 1:,}; load every shard before finish_loading()"
            )
