"""Which lane a batch takes, and why: decided from what is known on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from gramary.batch import Batch
from gramary.errors import ArgumentError
from gramary.offload.lanes.lane import Lane, Lanes
from gramary.offload.memory.ring import RingShape
from gramary.settings import Settings
from gramary.table import Table


@dataclasses.dataclass(frozen=True)
class Router:
    """What decides about lanes, the same for every batch.

    Attributes:
        early: whether prompt-only batches may take the host lane.
        rows_per_token: rows of all tables for one token.
        rings_from_rows: rows from which on the doorbell rings; smaller batches are read by the
            GPU itself.
        why_direct: why every batch takes the direct lane; None where some do not.
    """

    early: bool
    rows_per_token: int
    rings_from_rows: int = 0
    why_direct: str | None = None

    @classmethod
    def of(cls, tables: Sequence[Table], settings: Settings, early: bool) -> Router:
        """Returns the router of a connector's tables."""
        rows_per_token = sum(table.spec.num_heads for table in tables)
        if tables[0].device.type == "cpu":
            return cls(early, rows_per_token)
        residencies = [table.residency for table in tables]
        if not any(residency.beyond_device for residency in residencies):
            return cls(early, rows_per_token, why_direct="all rows are on the device")
        reads_all = not any(residency.beyond_kernels for residency in residencies)
        if settings.force_doorbell or not reads_all:
            return cls(early, rows_per_token)
        # Measured when the table was opened: from where on CPU threads are faster than the bus.
        measured = [
            table.gather_from_rows or 0 for table in tables if table.residency.host is not None
        ]
        return cls(early, rows_per_token, max(measured))

    def choose(self, batch: Batch, lanes: Lanes) -> tuple[Lane, str]:
        """Returns the lane of a batch, and why it is this one, in a few words."""
        if self.why_direct is not None:
            return lanes.direct, self.why_direct
        if batch.num_tokens * self.rows_per_token < self.rings_from_rows:
            return lanes.direct, "few rows: the GPU reads them"
        reason = batch.why_not_prompt_only()
        if reason is None and not self.early:
            reason = "prefill_early_request is off"
        return (lanes.stream, reason) if reason else (lanes.host, "prompt-only")


def require_fit(batch: Batch, shape: RingShape, device: torch.device) -> None:
    """Raises ArgumentError for a batch that is too large, too narrow, or on another device."""
    if not batch.is_on_host and batch.token_ids.device != device:
        raise ArgumentError(
            f"batch: expected tensors on the CPU or {device} (the tables' device), got "
            f"{batch.token_ids.device}"
        )
    if batch.num_tokens > shape.max_tokens or batch.num_requests > shape.max_requests:
        raise ArgumentError(
            f"batch: expected at most max_tokens = {shape.max_tokens} tokens and "
            f"{shape.max_requests} requests, got {batch.num_tokens} and {batch.num_requests}"
        )
    if batch.history is not None and batch.history.shape[1] != shape.history_length:
        raise ArgumentError(
            f"batch.history: expected {shape.history_length} columns (ngram_size - 1), got "
            f"{batch.history.shape[1]}"
        )


__all__ = ["Router", "require_fit"]
