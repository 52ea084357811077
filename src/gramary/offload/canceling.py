"""Tickets given up by their owner, whose slots become free once that is safe."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gramary.offload.consumer import require_slot, state_places
from gramary.offload.region import Region
from gramary.offload.ticket import Ticket


class CanceledTickets:
    """Canceled tickets whose slot was not released yet; from any thread.

    A slot must be released in the order of its requests: a canceled ticket waits until the one
    before it in its slot was released.

    Args:
        region: the shared memory.
        timeout_s: how long the flag of a published answer may take.
        on_settled: called with each ticket whose slot was released.
    """

    def __init__(
        self, region: Region, timeout_s: float, on_settled: Callable[[Ticket], None]
    ) -> None:
        self._region = region
        self._timeout_s = timeout_s
        self._on_settled = on_settled
        self._turn = threading.Lock()
        self._tickets: list[Ticket] = []

    def add(self, ticket: Ticket) -> None:
        """Takes a ticket that no layer was awaited for, and settles what can be settled."""
        with self._turn:
            self._tickets.append(ticket)
        self.settle()

    def settle(self) -> None:
        """Releases the slots of tickets whose turn has come."""
        with self._turn:
            for ticket in list(self._tickets):
                slot = require_slot(ticket)
                before = ticket.number - len(self._region.ring.host_slots)
                if ticket.lane == "host" and self._region.released(slot) < before:
                    continue
                for layer in range(self._region.ring.shape.num_layers):
                    give_up(self._region, ticket, layer, self._timeout_s)
                self._region.release(slot, ticket.number)
                self._tickets.remove(ticket)
                self._on_settled(ticket)


def give_up(region: Region, ticket: Ticket, layer: int, timeout_s: float) -> None:
    """Abandons a layer nobody waits for, or lowers the flag of its answer."""
    slot = require_slot(ticket)
    if not region.abandon(state_places(region, ticket), ticket.number, layer):
        region.wait_ready(slot, layer, timeout_s)
        region.clear_ready(slot, layer)


__all__ = ["CanceledTickets", "give_up"]
