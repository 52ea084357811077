"""Tickets: a caller's hold on rows under way for one batch."""

from __future__ import annotations

import weakref
from typing import ClassVar

from gramary.native.ring import SlotPlaces
from gramary.offload.lanes.lane import Claim
from gramary.process.bound import ProcessBound


class Ticket(ProcessBound):
    """A caller's hold on rows under way, from `Connector.request` until every table was awaited.

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

    def __repr__(self) -> str:
        """Returns its lane, its size and whether it is still under way, in one line."""
        state = "under way"
        if self.claim.is_canceled:
            state = "cancelled"
        elif self.claim.is_released:
            state = "finished"
        return f"<gramary.Ticket: {self.claim}, {state}>"

    @property
    def lane(self) -> str:
        """Which lane it took: "host", "stream", or "direct" where the table itself reads."""
        return self.claim.lane.name

    @property
    def number(self) -> int:
        """The request's number in its lane, from 1; 0 in the direct lane, or where a GPU counts."""
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
        """Where the rows arrive; None in the direct lane."""
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


__all__ = ["Ticket"]
