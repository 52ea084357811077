"""Tickets, and what a connector holds for each: rows under way for one batch."""

from __future__ import annotations

import dataclasses
import time
import weakref
from typing import ClassVar

from gramary.batch import Batch
from gramary.native.ring import SlotPlaces, StatePlaces
from gramary.process.bound import ProcessBound


@dataclasses.dataclass(eq=False)
class Claim:
    """What a connector holds for one batch, from before a slot is taken until it is given back.

    It is made first, and says at each step what was taken, so that whatever breaks a call off can
    be undone by the next one. It belongs to the caller as long as there is a `Ticket` of it; one
    without is given back.

    Attributes:
        home: what tells the connector that made it from others.
        lane: "host", "stream", or "none" where the consumer reads all rows itself.
        num_tokens: tokens of the batch, padding included.
        num_requests: requests of the batch.
        number: the request's number in its lane (and slot), from 1; 0 without a lane, and where a
            GPU counts by itself.
        slot: where the rows arrive; None without a lane, or before one was taken.
        states: where its state words lie; None where `slot` is.
        requested_at: when, on the monotonic clock in seconds.
        settled: layers of which nothing more is to come: "" where the answer is there, else why
            it was given up.
        giving_up: layers whose giving up was begun.
        taken: layers whose taking was queued on a device.
        awaited: layers whose rows, or whose error, the caller got.
        failed: those among them that had no rows.
        counted_as: among which lane's requests it is counted; "" where it is not.
        is_released: whether the slot is, or in stream order will be, free: nothing is held.
        is_canceled: whether it was given up before a layer was awaited.
        is_captured: whether it was requested while a CUDA graph was captured.
        is_being_queued: whether work for it is being queued on a device.
        batch: what the consumer reads itself; None with a lane.
        owner: the ticket; None before there was one, and where its call was broken off.
    """

    home: object
    lane: str
    num_tokens: int
    num_requests: int
    number: int = 0
    slot: SlotPlaces | None = None
    states: StatePlaces | None = None
    requested_at: float = dataclasses.field(default_factory=time.monotonic)
    settled: dict[int, str] = dataclasses.field(default_factory=dict)
    giving_up: set[int] = dataclasses.field(default_factory=set)
    taken: set[int] = dataclasses.field(default_factory=set)
    awaited: set[int] = dataclasses.field(default_factory=set)
    failed: set[int] = dataclasses.field(default_factory=set)
    counted_as: str = ""
    is_released: bool = False
    is_canceled: bool = False
    is_captured: bool = False
    is_being_queued: bool = False
    batch: Batch | None = None
    owner: weakref.ref[Ticket] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether nobody has a ticket of it, who could wait for it or cancel it."""
        return self.owner is None or self.owner() is None

    @property
    def is_torn(self) -> bool:
        """Whether a call was broken off that queued work: how much of it a device has is not
        known, or the caller was not given what the device has."""
        return self.is_being_queued or not self.taken <= self.awaited

    def how_to_free(self) -> str:
        """Returns what makes its slot free, in words."""
        if self.awaited:
            return "wait for its other layers, call release_outputs(), or cancel it"
        return "wait for it or cancel it"

    def __str__(self) -> str:
        number = f"ticket {self.number} of " if self.number else "the ticket of "
        lane = "no lane" if self.lane == "none" else f"the {self.lane} lane"
        return f"{number}{lane} ({self.num_requests} request(s), {self.num_tokens} token(s))"


class Ticket(ProcessBound):
    """A caller's hold on rows under way, from `Connector.request` until every layer was awaited.

    Whoever has it waits for the rows, or cancels them. One that is dropped is given up by the
    connector's next `request`.

    Attributes:
        claim: what the connector holds for it.
    """

    remedy: ClassVar[str] = (
        "its rows arrive in the memory of the connector that gave it; wait for them there, and "
        "pass them on"
    )

    __slots__ = ("__weakref__", "claim")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        claim.owner = weakref.ref(self)

    @property
    def lane(self) -> str:
        """Which lane it took: "host", "stream", or "none" where the consumer reads all rows."""
        return self.claim.lane

    @property
    def number(self) -> int:
        """The request's number in its lane, from 1; 0 where there is none, or a GPU counts."""
        return self.claim.number

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch, padding included."""
        return self.claim.num_tokens

    @property
    def num_requests(self) -> int:
        """Requests of the batch."""
        return self.claim.num_requests

    @property
    def slot(self) -> SlotPlaces | None:
        """Where the rows arrive; None without a lane."""
        return self.claim.slot

    @property
    def awaited(self) -> frozenset[int]:
        """Layers whose rows, or whose error, `wait` gave."""
        return frozenset(self.claim.awaited)

    @property
    def is_released(self) -> bool:
        """Whether its slot is, or in stream order will be, free."""
        return self.claim.is_released

    @property
    def is_canceled(self) -> bool:
        """Whether it was given up by `cancel`."""
        return self.claim.is_canceled

    def __str__(self) -> str:
        return str(self.claim)


def own_copy(batch: Batch) -> Batch:
    """Returns a batch whose rows the GPU reads itself, in `wait`.

    Host tensors are copied; device tensors must stay as they are until then.
    """
    if not batch.is_on_host:
        return batch
    history = None if batch.history is None else batch.history.clone()
    tokens, starts = batch.token_ids.clone(), batch.query_start_loc.clone()
    return dataclasses.replace(batch, token_ids=tokens, query_start_loc=starts, history=history)


__all__ = ["Claim", "Ticket", "own_copy"]
