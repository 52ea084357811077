"""How many rows were read from a tier in memory, counted where they are asked for.

What the CPU reads is counted by the core, row by row. A GPU's launch is counted by the rows that it
was asked for: nothing is counted on the device, and nothing waits for it. What a CUDA graph does is
counted when it is captured; its replays call nothing on the host and are not counted.
"""

from __future__ import annotations

from gramary.native.rows import RowCounter


class RowCounts:
    """What was read from one tier since it was made; from any thread.

    Args:
        row_bytes: bytes of an encoded row.

    Attributes:
        row_bytes: as above.
        read: rows that were read here.
        unsplit: rows, padding included, that launches were asked for which read here, of tables
            with rows in other tiers too: which of them lay here only the GPU knows.
    """

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.read = RowCounter()
        self.unsplit = RowCounter()

    def facts(self) -> dict[str, int]:
        """Returns a snapshot: `num_rows` and `row_bytes`, as a disk tier calls them, and
        `num_unsplit_rows`."""
        num_rows = self.read.num_rows
        return {
            "num_rows": num_rows,
            "row_bytes": num_rows * self.row_bytes,
            "num_unsplit_rows": self.unsplit.num_rows,
        }

    def count_launch(self, num_rows: int, *, is_only: bool) -> None:
        """Counts the rows, padding included, that one launch on a GPU was asked for.

        Args:
            num_rows: rows of the launch.
            is_only: whether the table has all its rows in this tier.
        """
        (self.read if is_only else self.unsplit).add(num_rows)

    def reset(self) -> None:
        """Forgets what was read until now."""
        self.read.reset()
        self.unsplit.reset()


__all__ = ["RowCounts"]
