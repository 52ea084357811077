"""The device tier: rows in a GPU's own memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gramary.errors import CapacityError, UnsupportedError
from gramary.native.rows import RowExtent
from gramary.tiers.base import Tier
from gramary.tiers.row_counts import RowCounts


class DeviceTier(Tier):
    """Rows in one tensor on the table's own device.

    Args:
        first_row: the table's row number of the first row held.
        num_rows: rows held.
        row_bytes: bytes of an encoded row.
        device: the CUDA device, with its index.

    Attributes:
        rows: uint8 [num_rows, row_bytes] on the device, zero where nothing was written.
        counts: rows that were read here.

    Raises:
        CapacityError: the device has not the memory.
    """

    name = "device"

    def __init__(self, first_row: int, num_rows: int, row_bytes: int, device: torch.device) -> None:
        super().__init__(first_row, num_rows, row_bytes)
        self.device = device
        self.counts = RowCounts(row_bytes)
        try:
            self.rows = torch.zeros((num_rows, row_bytes), dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"device rows need {self.nbytes:,} bytes and {device} has not that much free: "
                f"{error}"
            ) from error

    @property
    def extent(self) -> RowExtent:
        """The rows, by their address on the device; there until `close`."""
        return RowExtent(self.rows.data_ptr(), self.first_row, self.num_rows)

    def write(self, first_row: int, rows: torch.Tensor) -> None:
        """Copies rows first_row .. first_row + len(rows) - 1 in; `rows` may lie on any device."""
        first = first_row - self.first_row
        self.rows[first : first + rows.shape[0]].copy_(rows)

    def finish_writing(self) -> None:
        """Waits until the rows are in place: they may be read from any stream next."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def gather(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Fills `out` uint8 [n, row_bytes] on the CPU; for checks, not for serving."""
        out.copy_(self.rows[(row_ids - self.first_row).to(self.device)])
        self.counts.read.add(row_ids.numel())

    def stats(self) -> Mapping[str, int | float | str]:
        """Returns the device, the bytes taken, and what was read here (see `RowCounts.facts`)."""
        facts = self.counts.facts()
        return {**facts, "device": str(self.device), "allocated_bytes": self.nbytes}

    def close(self) -> None:
        """Lets the memory go; a second call does nothing."""
        self.rows = torch.empty(0, self.row_bytes, dtype=torch.uint8, device=self.device)


def free_device_bytes(device: torch.device) -> tuple[int, int]:
    """Returns (free, total) bytes of a CUDA device.

    Raises:
        UnsupportedError: the device is no CUDA device.
    """
    if device.type != "cuda":
        raise UnsupportedError(f"device: expected a CUDA device, got {device}")
    free, total = torch.cuda.mem_get_info(device)
    return int(free), int(total)
