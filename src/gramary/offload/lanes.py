"""The two lanes: who may request when, and under which number.

Host lane: requests numbered by the host, `num_slots` results under way; the service answers them
in order. Stream lane: one slot, one request under way; the service answers it before anything of
the host lane. Neither waits for the other.
"""

from __future__ import annotations

import threading

import torch

from gramary.batch import Batch
from gramary.errors import FetchTimeoutError, SlotsBusyError
from gramary.offload.region import Region
from gramary.offload.ring import SlotPlaces
from gramary.offload.ticket import Ticket
from gramary.tracing import SpanLog


class Quarantine:
    """Slots whose request was given up, until the service is through with it; from any thread."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._turn = threading.Lock()
        self._numbers: dict[SlotPlaces, int] = {}

    def add(self, slot: SlotPlaces, number: int) -> None:
        """Locks the slot of a request that was given up."""
        with self._turn:
            self._numbers[slot] = number

    def is_locked(self, slot: SlotPlaces) -> bool:
        """Returns whether the slot is locked and its request was not answered since."""
        return self._locked_by(slot) > 0

    def require_free(self, slot: SlotPlaces) -> None:
        """Raises FetchTimeoutError where the slot is locked."""
        if number := self._locked_by(slot):
            raise FetchTimeoutError(
                f"the slot is quarantined: its request {number} timed out and the worker has not "
                "answered it yet"
            )

    def _locked_by(self, slot: SlotPlaces) -> int:
        """Returns the request that locks a slot, or 0; lets go of one that was answered."""
        with self._turn:
            number = self._numbers.get(slot, 0)
            if self._region.done(slot) < number:
                return number
            self._numbers.pop(slot, None)
            return 0


class HostLane:
    """Requests of prompt-only batches, from host tensors, ahead of the forward they belong to."""

    def __init__(self, region: Region, quarantine: Quarantine, spans: SpanLog) -> None:
        self._region = region
        self._quarantine = quarantine
        self._spans = spans
        self._newest = 0
        self._open: dict[SlotPlaces, Ticket] = {}

    def request(self, batch: Batch) -> Ticket:
        """Copies a batch's inputs and returns its ticket; never blocks.

        Raises:
            SlotsBusyError: the slot whose turn it is has a ticket that was not awaited for every
                layer, or the consumer is so far behind that no place for the inputs is free.
            FetchTimeoutError: the slot holds a request that timed out and was not answered yet.
        """
        ring = self._region.ring
        number = self._newest + 1
        slot = ring.host_slot(number)
        # A consumer that waited for this slot's next request before its last would wait forever.
        if slot in self._open:
            raise SlotsBusyError(
                f"{len(self._open)} ticket(s) of the host lane were not awaited for every layer, "
                f"among them {self._open[slot]}, and there are {len(ring.host_slots)} slot(s): "
                "wait for it or cancel it, or raise num_slots"
            )
        self._quarantine.require_free(slot)
        oldest = number - len(ring.inputs)
        if oldest > 0 and self._region.released(slot) < oldest:
            raise SlotsBusyError(
                f"the inputs of {len(ring.inputs)} requests are kept and the oldest is still "
                "under way: let the consumer catch up"
            )
        with self._spans.span("write_inputs", "host", number):
            self._region.write_inputs(number, batch.token_ids, batch.query_start_loc, batch.history)
            # What fails, or is interrupted, before this was no request: its number is free.
            self._newest = number
            self._region.announce(number)
        ticket = Ticket("host", number, batch.num_tokens, batch.num_requests, slot)
        self._open[slot] = ticket
        return ticket

    def finished(self, ticket: Ticket) -> None:
        """Counts a ticket that was awaited for every layer, or canceled."""
        if ticket.slot is not None:
            self._open.pop(ticket.slot, None)


class StreamLane:
    """Requests by row ids in the order of one stream (on the CPU: of the calls)."""

    def __init__(
        self, region: Region, slot: SlotPlaces, quarantine: Quarantine, spans: SpanLog
    ) -> None:
        self._region = region
        self._quarantine = quarantine
        self._spans = spans
        self._slot = slot
        self._newest = 0
        self._is_taken = False

    @property
    def next_number(self) -> int:
        """The number that the next request gets."""
        return self._newest + 1

    def request(self, batch: Batch, ids: list[torch.Tensor]) -> Ticket:
        """Writes row ids [T, heads], a tensor a layer, rings, and returns the ticket.

        Raises:
            SlotsBusyError: the lane's last ticket was not awaited, or not for every layer.
            FetchTimeoutError: its slot holds a request that timed out and was not answered yet.
        """
        if self._is_taken:
            raise SlotsBusyError(
                "the stream lane's last ticket was not awaited for every layer: wait for it, "
                "cancel it, or call release_outputs()"
            )
        self._quarantine.require_free(self._slot)
        number = self.next_number
        with self._spans.span("write_inputs", "stream", number):
            self._region.fill_slot(self._slot, number, ids)
            # What fails, or is interrupted, before this was no request: its number is free.
            self._newest, self._is_taken = number, True
            self._region.ring_slot(self._slot, number)
        return Ticket("stream", number, batch.num_tokens, batch.num_requests, self._slot)

    def released(self) -> None:
        """Counts the lane's ticket as taken or canceled."""
        self._is_taken = False


__all__ = ["HostLane", "Quarantine", "StreamLane"]
