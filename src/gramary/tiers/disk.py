"""The disk tier: rows stay in their files and are read when they are asked for."""

from __future__ import annotations

import errno
from collections.abc import Mapping

import torch

from gramary.errors import ArgumentError, RowReadError, UnsupportedError
from gramary.files.layout import RowLayout
from gramary.native.disk import DiskReader
from gramary.native.rows import RowExtent
from gramary.settings import Settings
from gramary.tiers.base import Tier


class DiskTier(Tier):
    """Rows first_row .. first_row + num_rows - 1, read from the files of `layout`.

    Args:
        layout: where all rows of the table lie; the tier holds the files open.
        first_row: the table's row number of the first row of this tier.
        num_rows: rows of this tier.
        settings: `disk_reader`, `direct_io` and `mmap_budget_mib` are followed.

    Attributes:
        layout: where all rows of the table lie.

    Raises:
        RowReadError: a file cannot be opened or was replaced since it was inspected.
        ArgumentError: the layout is inconsistent, or does not hold these rows.
    """

    name = "disk"

    def __init__(
        self, layout: RowLayout, first_row: int, num_rows: int, settings: Settings | None = None
    ) -> None:
        super().__init__(first_row, num_rows, layout.row_bytes)
        if self.end_row > layout.num_rows:
            raise ArgumentError(
                f"disk tier: expected rows below {layout.num_rows}, got {first_row} to "
                f"{self.end_row - 1}"
            )
        self.layout = layout
        chosen = settings or Settings()
        self._reader = DiskReader(
            layout,
            reader=chosen.disk_reader,
            direct_io=chosen.direct_io,
            mmap_budget_bytes=chosen.mmap_budget_mib << 20,
        )

    @property
    def extent(self) -> RowExtent:
        """The rows, by the core's reader, for a row service in this process with a hold of it."""
        return RowExtent(self._reader.address, self.first_row, self.num_rows)

    def hold(self) -> object:
        """Returns what keeps the core's reader, beyond `close` too."""
        return self._reader.hold()

    def write(self, first_row: int, rows: torch.Tensor) -> None:
        """Raises UnsupportedError: the rows are in the files already."""
        raise UnsupportedError(
            f"disk tier: cannot write {len(rows)} rows at {first_row}; rows on disk are read from "
            f"the checkpoint or pack in place"
        )

    def gather(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Fills `out` with the encoded rows of `row_ids`, reading each block once.

        Args:
            row_ids: int64 [n] on the CPU, contiguous, every one a row of this tier.
            out: uint8 [n, row_bytes] on the CPU, contiguous.

        Raises:
            RowReadError: reading failed; the next call is unharmed. ESTALE: a file with some of
                these rows was replaced or written to since it was opened.
            ChecksumError: a block of a pack was altered.
            ClosedError: the tier was closed.
        """
        self._reader.read(row_ids, out)

    def stats(self) -> Mapping[str, int | float | str]:
        """Returns the reader's counters and how it reads."""
        return self._reader.stats()

    def close(self) -> None:
        """Waits for running gathers and closes the files."""
        self._reader.close()

    def check_integrity(self) -> None:
        """Raises RowReadError (ESTALE) where a file was changed or replaced since it was opened."""
        changed = self._reader.find_changed_file()
        if changed is not None:
            raise RowReadError(
                "the file was changed while the table was open; open the table again",
                file=changed,
                offset=0,
                errno=errno.ESTALE,
            )
