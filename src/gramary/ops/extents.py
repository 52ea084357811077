"""Where a table's rows lie as far as one kernel launch can reach them."""

from __future__ import annotations

import dataclasses

from gramary.errors import ArgumentError
from gramary.native.rows import NO_ROWS, RowExtent


@dataclasses.dataclass(frozen=True)
class Extents:
    """The device extent and the host extent of one table; either may be empty.

    Row numbers are the table's own. A row inside neither extent (on disk, in a foreign shard) is
    legal: kernels give a zero row for it and read nothing.

    Attributes:
        num_rows: rows of the whole table; ids from there on are wrong.
        device: rows in the CUDA device's own memory.
        host: rows in registered (or pinned) host memory, at their address as the device sees it.

    Raises:
        ArgumentError: an extent leaves the table, overlaps the other or lacks its memory.
    """

    num_rows: int
    device: RowExtent = NO_ROWS
    host: RowExtent = NO_ROWS

    def __post_init__(self) -> None:
        device, host = self.device, self.host
        for name, extent in (("device", device), ("host", host)):
            if not 0 <= extent.first_row <= extent.end_row <= self.num_rows:
                raise ArgumentError(
                    f"{name} extent: expected rows within 0 to {self.num_rows}, "
                    f"got {extent.first_row} to {extent.end_row}"
                )
            if extent.num_rows and extent.address == 0:
                raise ArgumentError(f"{name} extent: expected an address for its rows, got 0")
        if max(device.first_row, host.first_row) < min(device.end_row, host.end_row):
            raise ArgumentError(
                f"extents: expected disjoint rows, got device {device.first_row} to "
                f"{device.end_row} and host {host.first_row} to {host.end_row}"
            )


def kernel_arguments(extent: RowExtent) -> tuple[int, int, int]:
    """Returns an extent as kernels take it: its address, its first row, and one past its last."""
    return extent.address, extent.first_row, extent.end_row
