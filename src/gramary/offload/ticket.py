"""Tickets: rows under way for one batch."""

from __future__ import annotations

import dataclasses
import time

from gramary.batch import Batch
from gramary.offload.ring import SlotPlaces


@dataclasses.dataclass(eq=False)
class Ticket:
    """Rows under way for one batch, from `Connector.request` until every layer was awaited.

    Attributes:
        lane: "host", "stream", or "none" where the consumer reads all rows itself.
        number: the request's number in its lane (and slot), from 1; 0 without a lane, and where a
            GPU counts by itself.
        num_tokens: tokens of the batch, padding included.
        num_requests: requests of the batch.
        slot: where the rows arrive; None without a lane.
        requested_at: when, on the monotonic clock in seconds.
        awaited: layers that `wait` was called for.
        is_released: whether its slot is, or in stream order will be, free.
        is_canceled: whether it was given up by `cancel`.
        is_captured: whether it was requested while a CUDA graph was captured.
        batch: what the consumer reads itself; None with a lane.
    """

    lane: str
    number: int
    num_tokens: int
    num_requests: int
    slot: SlotPlaces | None = None
    requested_at: float = dataclasses.field(default_factory=time.monotonic)
    awaited: set[int] = dataclasses.field(default_factory=set)
    is_released: bool = False
    is_canceled: bool = False
    is_captured: bool = False
    batch: Batch | None = None

    def __str__(self) -> str:
        lane = "no lane" if self.lane == "none" else f"{self.lane} lane"
        lane += f", number {self.number}" if self.number else ""
        return f"ticket of {self.num_requests} request(s), {self.num_tokens} token(s) ({lane})"


def unasked(batch: Batch) -> Ticket:
    """Returns the ticket of a batch whose rows the GPU reads itself, in `wait`.

    Host tensors are copied; device tensors must stay as they are until then.
    """
    if batch.is_on_host:
        history = None if batch.history is None else batch.history.clone()
        tokens, starts = batch.token_ids.clone(), batch.query_start_loc.clone()
        batch = dataclasses.replace(
            batch, token_ids=tokens, query_start_loc=starts, history=history
        )
    return Ticket("none", 0, batch.num_tokens, batch.num_requests, batch=batch)


__all__ = ["Ticket", "unasked"]
