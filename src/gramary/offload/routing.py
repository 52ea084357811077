"""Which lane a batch takes, and why: decided from what is known on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gramary.batch import Batch
from gramary.settings import Settings
from gramary.table import Table
from gramary.tiers.device import DeviceTier
from gramary.tiers.host import HostTier


@dataclasses.dataclass(frozen=True)
class Route:
    """A lane ("host", "stream", or "none" where no doorbell rings), and why, in a few words."""

    lane: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Router:
    """What decides about lanes, the same for every batch.

    Attributes:
        early: whether prompt-only batches may take the host lane.
        rows_per_token: rows of all tables for one token.
        rings_from_rows: rows from which on the doorbell rings; smaller batches are read by the
            GPU itself.
        why_none: why no batch ever rings; None where some do.
    """

    early: bool
    rows_per_token: int
    rings_from_rows: int = 0
    why_none: str | None = None

    @classmethod
    def of(cls, tables: Sequence[Table], settings: Settings, early: bool) -> Router:
        """Returns the router of a connector's tables."""
        rows_per_token = sum(table.spec.num_heads for table in tables)
        if tables[0].device.type == "cpu":
            return cls(early, rows_per_token)
        tiers = [tier for table in tables for tier in table.tiers]
        if all(isinstance(tier, DeviceTier) for tier in tiers):
            return cls(early, rows_per_token, why_none="all rows are on the device")
        reads_all = all(
            isinstance(tier, DeviceTier)
            or (isinstance(tier, HostTier) and tier.device_address is not None)
            for tier in tiers
        )
        if settings.force_doorbell or not reads_all:
            return cls(early, rows_per_token)
        # Measured when the table was opened: from where on CPU threads are faster than the bus.
        measured = [
            table.gather_from_rows or 0
            for table in tables
            if any(isinstance(tier, HostTier) for tier in table.tiers)
        ]
        return cls(early, rows_per_token, max(measured))

    def route(self, batch: Batch) -> Route:
        """Returns a batch's lane."""
        if self.why_none is not None:
            return Route("none", self.why_none)
        if batch.num_tokens * self.rows_per_token < self.rings_from_rows:
            return Route("none", "few rows: the GPU reads them")
        reason = batch.why_not_prompt_only()
        if reason is None and not self.early:
            reason = "prefill_early_request is off"
        return Route("stream", reason) if reason else Route("host", "prompt-only")


__all__ = ["Route", "Router"]
