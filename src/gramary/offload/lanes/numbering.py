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
from gramary.native.ring import SlotPlaces
from gramary.offload.lanes.batch_tensors import raise_wrong_token
from gramary.offload.memory.region import Region
from gramary.offload.ticket import Claim
from gramary.ops.flat_batch import as_in_memory
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
                "answered it yet; request again once it has, or close this connector and make a "
                "new one"
            )

    def _locked_by(self, slot: SlotPlaces) -> int:
        """Returns the request that locks a slot, or 0; lets go of one that was answered."""
        with self._turn:
            number = self._numbers.get(slot, 0)
            if self._region.done(slot) < number:
                return number
            self._numbers.pop(slot, None)
            return 0


# The service copies inputs as fast as they were written; beyond this it stands still.
TAKE_BACK_S = 0.1


class HostLane:
    """Requests of prompt-only batches, from host tensors, ahead of the forward they belong to."""

    def __init__(
        self, region: Region, vocab_size: int, quarantine: Quarantine, spans: SpanLog
    ) -> None:
        self._region = region
        self._vocab_size = vocab_size
        self._quarantine = quarantine
        self._spans = spans
        # The newest claim on each slot; one that is released holds it no more.
        self._holders: dict[SlotPlaces, Claim] = {}
        self._newest = 0

    def request(self, claim: Claim, batch: Batch) -> None:
        """Copies a batch's inputs and asks for its rows; never blocks.

        The claim has the slot from before the first byte is written. The number counts as used
        once it was announced: what fails, or is interrupted, before that was no request.

        Raises:
            SlotsBusyError: the slot whose turn it is has a claim that was not awaited for every
                layer, or the consumer is so far behind that no place for the inputs is free.
            FetchTimeoutError: the slot holds a request that timed out and was not answered yet.
        """
        ring = self._region.ring
        self._newest = newest_request(self._newest, self._region.announced())
        number = self._newest + 1
        slot = ring.host_slot(number)
        # A consumer that waited for this slot's next request before its last would wait forever.
        if (holder := self._holders.get(slot)) is not None and not holder.is_released:
            raise SlotsBusyError(self._why_busy(holder))
        self._quarantine.require_free(slot)
        oldest = number - len(ring.inputs)
        if oldest > 0 and self._region.released(slot) < oldest:
            raise SlotsBusyError(
                f"the inputs of {len(ring.inputs)} host-lane requests are kept, and the rows of "
                "the oldest were not taken yet: wait for the device (torch.cuda.synchronize()) "
                "and request again, or raise num_slots"
            )
        if oldest > 0 and not self._region.take_back(oldest, TAKE_BACK_S):
            raise SlotsBusyError(
                f"the service still copies the inputs of request {oldest}, which lie where these "
                "would: ask again"
            )
        claim.number, claim.slot, claim.states = number, slot, ring.input(number)
        self._holders[slot] = claim
        with self._spans.span("write_inputs", "host", number):
            wrong = self._write(number, batch)
            if wrong is not None:
                raise_wrong_token(batch, *wrong, self._vocab_size)
            self._region.announce(number)
        self._newest = number

    def _write(self, number: int, batch: Batch) -> tuple[str, int] | None:
        history = None if batch.history is None else as_in_memory(batch.history)
        return self._region.write_inputs(
            number,
            as_in_memory(batch.token_ids),
            as_in_memory(batch.query_start_loc),
            history,
            self._vocab_size,
        )

    def _why_busy(self, holder: Claim) -> str:
        num_slots = len(self._region.ring.host_slots)
        num_held = sum(not claim.is_released for claim in self._holders.values())
        remedy = f"{holder.how_to_free()}, or raise num_slots"
        if num_held == num_slots:
            return f"all {num_slots} host-lane slots are in use (oldest: {holder}); {remedy}"
        return (
            f"{num_held} of {num_slots} host-lane slots are in use, and the next in turn is that "
            f"of {holder}; {remedy}"
        )


class StreamLane:
    """Requests by row ids in the order of one stream (on the CPU: of the calls)."""

    def __init__(
        self, region: Region, slot: SlotPlaces, quarantine: Quarantine, spans: SpanLog
    ) -> None:
        self._region = region
        self._quarantine = quarantine
        self._spans = spans
        self._slot = slot
        self._holder: Claim | None = None
        self._newest = 0

    @property
    def next_number(self) -> int:
        """The number that the next request gets."""
        return newest_request(self._newest, self._region.slot_number(self._slot)) + 1

    def request(self, claim: Claim, ids: list[torch.Tensor]) -> None:
        """Writes row ids [T, heads], a tensor a layer, and rings.

        The claim has the slot from before the first byte is written, as in the host lane.

        Raises:
            SlotsBusyError: the lane's last claim was not awaited, or not for every layer.
            FetchTimeoutError: its slot holds a request that timed out and was not answered yet.
        """
        if self._holder is not None and not self._holder.is_released:
            raise SlotsBusyError(stream_is_busy(self._holder))
        self._quarantine.require_free(self._slot)
        claim.number, claim.slot, claim.states = self.next_number, self._slot, self._slot
        self._holder = claim
        with self._spans.span("write_inputs", "stream", claim.number):
            for layer, layer_ids in enumerate(ids):
                self._region.ids(self._slot, layer, claim.num_tokens).copy_(layer_ids)
            self._region.request_slot(self._slot, claim.number, claim.num_tokens)
            self._region.ring_slot(self._slot, claim.number)
        self._newest = claim.number


def newest_request(noted: int, announced: int) -> int:
    """Returns the newest request of a lane.

    An interrupt may have come after it was announced and before that was noted. Another process can
    write the announced number, so it moves ours by one at most.
    """
    return noted + 1 if announced == noted + 1 else noted


def stream_is_busy(holder: Claim) -> str:
    """Returns what stands in the way of a stream's next request, and what to do about it."""
    return f"the stream lane's slot is in use by {holder}; {holder.how_to_free()}"


__all__ = ["HostLane", "Quarantine", "StreamLane", "stream_is_busy"]
