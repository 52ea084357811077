"""Where a table's rows are: each tier once, or not at all."""

from __future__ import annotations

import dataclasses
import functools

from gramary.native.rows import NO_ROWS, RowExtent
from gramary.tiers.base import Tier
from gramary.tiers.device import DeviceTier
from gramary.tiers.disk import DiskTier
from gramary.tiers.host import HostTier


@dataclasses.dataclass(frozen=True)
class Residency:
    """The tiers that hold a rank's rows, by name: a placement names each of them once.

    Attributes:
        device: rows in the GPU's own memory; None without.
        host: rows in host memory; None without.
        disk: rows that stay in their files; None without.
    """

    device: DeviceTier | None = None
    host: HostTier | None = None
    disk: DiskTier | None = None

    @functools.cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """All of them, in the order of their rows."""
        return _in_order(self.device, self.host, self.disk)

    @functools.cached_property
    def in_memory(self) -> tuple[Tier, ...]:
        """Those whose rows are loaded, in the order of their rows."""
        return _in_order(self.device, self.host)

    @functools.cached_property
    def beyond_device(self) -> tuple[Tier, ...]:
        """Those outside of the GPU's own memory, in the order of their rows."""
        return _in_order(self.host, self.disk)

    @functools.cached_property
    def beyond_kernels(self) -> tuple[Tier, ...]:
        """Those whose rows no kernel can read, in the order of their rows."""
        is_registered = self.registered_extent.num_rows > 0
        return _in_order(None if is_registered else self.host, self.disk)

    @property
    def device_extent(self) -> RowExtent:
        """Rows in the GPU's own memory."""
        return self.device.extent if self.device else NO_ROWS

    @property
    def host_extent(self) -> RowExtent:
        """Rows in host memory, as the CPU reads them."""
        return self.host.extent if self.host else NO_ROWS

    @property
    def registered_extent(self) -> RowExtent:
        """Rows in host memory, as kernels read them; no rows where it is not registered."""
        return self.host.registered_extent if self.host else NO_ROWS


def _in_order(*tiers: Tier | None) -> tuple[Tier, ...]:
    held = [tier for tier in tiers if tier is not None]
    return tuple(sorted(held, key=lambda tier: tier.first_row))


__all__ = ["Residency"]
