"""Rows of a GPU's launches, counted for the tiers that they read."""

from __future__ import annotations

from gramary.tiers.residency import Residency


class LaunchCounts:
    """Counts what launches over a table's device rows, and host rows registered with CUDA, read.

    Args:
        residency: where this rank's rows are.
    """

    def __init__(self, residency: Residency) -> None:
        self._is_only = len(residency.tiers) == 1
        self._device = residency.device.counts if residency.device else None
        is_registered = residency.registered_extent.num_rows > 0
        self._host = residency.host.counts if residency.host and is_registered else None

    def count(self, num_rows: int, *, reads_host: bool = True) -> None:
        """Counts one launch.

        Args:
            num_rows: rows that it was asked for, padding included.
            reads_host: whether it reads registered host rows beside the device's own.
        """
        if self._device is not None:
            self._device.count_launch(num_rows, is_only=self._is_only)
        if self._host is not None and reads_host:
            self._host.count_launch(num_rows, is_only=self._is_only)


__all__ = ["LaunchCounts"]
