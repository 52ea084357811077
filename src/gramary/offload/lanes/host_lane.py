"""The host lane: requests of prompt-only batches, ahead of the forward they belong to.

The host numbers them, `num_slots` results may be under way, and the service answers in order. It
never waits for the stream lane, nor the stream lane for it.
"""

from __future__ import annotations

from gramary.batch import Batch
from gramary.errors import SlotsBusyError, TokenError
from gramary.flat_batch import as_in_memory
from gramary.native.ring import SlotPlaces
from gramary.offload.giving_up.quarantine import Quarantine
from gramary.offload.lanes.lane import Claim
from gramary.offload.lanes.slot_lane import SlotLane, SlotParts, newest_request
from gramary.offload.memory.region import Region
from gramary.tracing import NOTHING, SpanLog

# The service copies inputs as fast as they were written; beyond this it stands still.
TAKE_BACK_S = 0.1


class HostRequests:
    """Who may request in the host lane when, and under which number.

    Args:
        region: the shared memory.
        vocab_size: one past the largest token allowed.
        quarantine: slots whose request was given up.
        spans: told when inputs were written.
    """

    def __init__(
        self, region: Region, vocab_size: int, quarantine: Quarantine, spans: SpanLog
    ) -> None:
        self._region = region
        self._slots, self._inputs = region.ring.host_slots, region.ring.inputs
        self._vocab_size = vocab_size
        self._quarantine = quarantine
        self._spans = spans
        # The newest claim on each slot; one that is released holds it no more.
        self._holders: dict[SlotPlaces, Claim] = {}
        self._newest = 0

    def request(self, claim: Claim, batch: Batch) -> None:
        """Copies a batch's inputs and asks for its rows; never blocks.

        The number counts as used once it was announced: what fails, or is interrupted, before that
        was no request.

        Raises:
            SlotsBusyError: the slot whose turn it is has a claim that was not awaited for every
                table, or the consumer is so far behind that no place for the inputs is free.
            FetchTimeoutError: the slot holds a request that timed out and was not answered yet.
            TokenError: a token lies outside the vocabulary.
        """
        region = self._region
        self._newest = newest_request(self._newest, region.announced())
        number = self._newest + 1
        slot = self._slots[(number - 1) % len(self._slots)]
        # A consumer that waited for this slot's next request before its last would wait forever.
        if (holder := self._holders.get(slot)) is not None and not holder.is_released:
            raise SlotsBusyError(self._why_busy(holder))
        if slot in self._quarantine.slots:
            self._quarantine.require_free(slot)
        if number > len(self._inputs):
            self._take_back(slot, number - len(self._inputs))
        claim.number, claim.slot = number, slot
        claim.states = self._inputs[(number - 1) % len(self._inputs)]
        self._holders[slot] = claim
        is_on = self._spans.is_on
        with self._spans.span("write_inputs", "host", number) if is_on else NOTHING:
            history = batch.history
            wrong = region.write_inputs(
                number,
                as_in_memory(batch.token_ids),
                as_in_memory(batch.query_start_loc),
                None if history is None else as_in_memory(history),
                self._vocab_size,
            )
            if wrong is not None:
                raise self._token_error(batch, *wrong)
            region.announce(number)
        self._newest = number

    def _take_back(self, slot: SlotPlaces, oldest: int) -> None:
        """Makes the place of an older request's inputs free."""
        if self._region.released(slot) < oldest:
            raise SlotsBusyError(
                f"the inputs of {len(self._inputs)} host-lane requests are kept, and the rows of "
                "the oldest were not taken yet: wait for the device (torch.cuda.synchronize()) "
                "and request again, or raise num_slots"
            )
        if not self._region.take_back(oldest, TAKE_BACK_S):
            raise SlotsBusyError(
                f"the service still copies the inputs of request {oldest}, which lie where these "
                "would: ask again"
            )

    def _token_error(self, batch: Batch, name: str, index: int) -> TokenError:
        tokens = batch.token_ids if name == "token_ids" else batch.history
        assert tokens is not None
        value = int(tokens.reshape(-1)[index])
        return TokenError(f"{name}[{index}]: expected 0 to {self._vocab_size - 1}, got {value}")

    def _why_busy(self, holder: Claim) -> str:
        num_slots = len(self._slots)
        num_held = sum(not claim.is_released for claim in self._holders.values())
        remedy = f"{holder.how_to_free()}, or raise num_slots"
        if num_held == num_slots:
            return f"all {num_slots} host-lane slots are in use (oldest: {holder}); {remedy}"
        return (
            f"{num_held} of {num_slots} host-lane slots are in use, and the next in turn is that "
            f"of {holder}; {remedy}"
        )


class HostLane(SlotLane):
    """The host lane of CPU tables.

    Args:
        requests: numbers and slots of the lane.
        parts: what the lanes with slots share.
    """

    name = "host"
    title = "the host lane"

    def __init__(self, requests: HostRequests, parts: SlotParts) -> None:
        super().__init__(parts)
        self._requests = requests

    def request(self, claim: Claim, batch: Batch) -> None:
        """Copies the batch's inputs and rings; see `HostRequests`."""
        self._requests.request(claim, batch)


__all__ = ["HostLane", "HostRequests"]
