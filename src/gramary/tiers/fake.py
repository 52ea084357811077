"""A tier that fails and dawdles on request, for tests of whatever reads rows.

Its rows lie in an anonymous file and are read by the same native reader as rows on disk, so what a
test sees (errors, offsets, statistics, the native handle) is what a failing disk would show.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

import torch

from gramary.errors import ArgumentError
from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun
from gramary.native.disk import DiskReader
from gramary.tiers.base import Tier


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens to one gather.

    Attributes:
        gather: which one, from 0; empty gathers do not count.
        delay_s: seconds it waits first.
        errno: system error it then fails with; None for none.
        short_at: the file ends so many bytes into its first read; None where it does not.
    """

    gather: int
    delay_s: float = 0.0
    errno: int | None = None
    short_at: int | None = None

    def __post_init__(self) -> None:
        if self.gather < 0 or self.delay_s < 0 or (self.short_at or 0) < 0:
            raise ArgumentError(f"fault: expected numbers from 0 on, got {self}")
        if self.errno is not None and (self.errno < 1 or self.short_at is not None):
            raise ArgumentError(f"fault: expected a positive errno or a short read, got {self}")

    def _record(self) -> tuple[int, int, int, int]:
        code = self.errno if self.errno is not None else -1 if self.short_at is None else 0
        return self.gather, round(self.delay_s * 1e6), code, self.short_at or 0


class FakeTier(Tier):
    """Rows of a tensor, read with scripted delays, short reads and errors.

    Args:
        first_row: the table's row number of the first row.
        rows: uint8 [n, row_bytes]; copied.
        faults: what happens to which gathers; the others succeed.
        reader: as for `DiskReader`.

    Attributes:
        path: name that errors give the file.
    """

    name = "fake"

    def __init__(
        self,
        first_row: int,
        rows: torch.Tensor,
        faults: Sequence[Fault] = (),
        *,
        reader: str = "auto",
    ) -> None:
        super().__init__(first_row, rows.shape[0], rows.shape[1])
        self._descriptor = os.memfd_create("gramary-fake-rows")
        # The descriptor stays: errors and the reader's look for replaced files need the name.
        self.path = f"/proc/self/fd/{self._descriptor}"
        try:
            data = rows.contiguous().numpy().tobytes()
            os.pwrite(self._descriptor, data, first_row * self.row_bytes)
            layout = _lay_out(RowFile.from_path(self.path), self.end_row, self.row_bytes)
            self.reader = DiskReader(layout, reader=reader)
        except BaseException:
            os.close(self._descriptor)
            raise
        if faults:
            records = [fault._record() for fault in faults]
            self.reader.set_script(torch.tensor(records, dtype=torch.int64, device="cpu"))

    def write(self, first_row: int, rows: torch.Tensor) -> None:
        """Raises ArgumentError: the rows are those of the constructor."""
        raise ArgumentError(f"fake tier: cannot write {len(rows)} rows at {first_row}")

    def gather(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Fills `out` like a disk tier, or waits, or fails, as scripted.

        Raises:
            RowReadError: scripted; the next gather is unharmed unless it is scripted too.
        """
        self.reader.read(row_ids, out)

    def stats(self) -> Mapping[str, int | float | str]:
        """Returns the reader's counters."""
        return self.reader.stats()

    def close(self) -> None:
        """Gives the file back."""
        self.reader.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _lay_out(file: RowFile, num_rows: int, row_bytes: int) -> RowLayout:
    part = RowPart(0, 0, row_bytes, 0, num_rows, num_rows * row_bytes, row_bytes)
    return RowLayout((file,), row_bytes, (RowRun(0, num_rows, (part,)),))
