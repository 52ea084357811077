"""Where a table's rows lie as far as one kernel launch can reach them."""

from __future__ import annotations

import dataclasses

import torch

from gramary.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Extents:
    """The device extent and the host extent of one table; either may be empty.

    Row numbers are the table's own. A row inside neither extent (on disk, in a foreign shard) is
    legal: kernels give a zero row for it and read nothing.

    Attributes:
        num_rows: rows of the whole table; ids from there on are wrong.
        device_rows: uint8 [device_end - device_first, row_bytes], contiguous on the CUDA device;
            None without device rows.
        device_first: first row of the device extent.
        device_end: one past its last row.
        host_address: address, as the device sees it, of the first row of the host extent in
            registered (or pinned) host memory; 0 without host rows.
        host_first: first row of the host extent.
        host_end: one past its last row.

    Raises:
        ArgumentError: an extent leaves the table, overlaps the other or lacks its memory.
    """

    num_rows: int
    device_rows: torch.Tensor | None = None
    device_first: int = 0
    device_end: int = 0
    host_address: int = 0
    host_first: int = 0
    host_end: int = 0

    def __post_init__(self) -> None:
        for name in ("device", "host"):
            first, end = getattr(self, f"{name}_first"), getattr(self, f"{name}_end")
            if not 0 <= first <= end <= self.num_rows:
                raise ArgumentError(
                    f"{name} extent: expected rows within 0 to {self.num_rows}, "
                    f"got {first} to {end}"
                )
        if max(self.device_first, self.host_first) < min(self.device_end, self.host_end):
            raise ArgumentError(
                f"extents: expected disjoint rows, got device {self.device_first} to "
                f"{self.device_end} and host {self.host_first} to {self.host_end}"
            )
        num_given = 0 if self.device_rows is None else self.device_rows.shape[0]
        if num_given != self.device_end - self.device_first:
            raise ArgumentError(
                f"device_rows: expected {self.device_end - self.device_first} rows, got {num_given}"
            )
        if self.host_end > self.host_first and self.host_address == 0:
            raise ArgumentError("host_address: expected an address for the host rows, got 0")

    @property
    def device_address(self) -> int:
        """Address of the first device row, or 0."""
        return 0 if self.device_rows is None else self.device_rows.data_ptr()

    @property
    def num_host_rows(self) -> int:
        """Rows that are read over the bus."""
        return self.host_end - self.host_first
