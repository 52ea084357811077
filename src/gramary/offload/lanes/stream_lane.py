"""The stream lane of CPU tables: any batch, in the order of the calls, one request under way."""

from __future__ import annotations

from gramary.batch import Batch
from gramary.errors import SlotsBusyError
from gramary.native.hash import fault_of
from gramary.offload.lanes.lane import Claim
from gramary.offload.lanes.slot_lane import SlotLane, SlotParts, newest_request
from gramary.ops._cpu.hash import hasher, raise_fault
from gramary.tracing import NOTHING


class StreamLane(SlotLane):
    """Row ids are hashed on the calling thread; the service answers before anything of the host
    lane.

    Args:
        parts: what the lanes with slots share.
    """

    name = "stream"
    title = "the stream lane"

    def __init__(self, parts: SlotParts) -> None:
        super().__init__(parts)
        self._tables = parts.tables
        self._hashers = [hasher(table.spec) for table in self._tables]
        self._slot = self._region.ring.stream_slots[0]
        self._holder: Claim | None = None
        self._newest = 0

    def request(self, claim: Claim, batch: Batch) -> None:
        """Hashes a batch's row ids into the slot and rings; see `Lane`."""
        region, slot, spans = self._region, self._slot, self._spans
        if self._holder is not None and not self._holder.is_released:
            raise SlotsBusyError(stream_is_busy(self._holder))
        if slot in self._quarantine.slots:
            self._quarantine.require_free(slot)
        number = newest_request(self._newest, region.slot_number(slot)) + 1
        claim.number, claim.slot, claim.states = number, slot, slot
        self._holder = claim
        with spans.span("wait_tokens", self.name, number) if spans.is_on else NOTHING:
            self._write_ids(batch)
        with spans.span("write_inputs", self.name, number) if spans.is_on else NOTHING:
            region.request_slot(slot, number, claim.num_tokens)
            region.ring_slot(slot, number)
        self._newest = number

    def _write_ids(self, batch: Batch) -> None:
        """Hashes every table's row ids into the slot."""
        for table_index, table in enumerate(self._tables):
            flat = batch.flat(table.spec.history_length)
            code = self._region.write_ids(self._slot, table_index, self._hashers[table_index], flat)
            if code and (fault := fault_of(code)) is not None:
                raise_fault(fault, table.spec, flat)


def stream_is_busy(holder: Claim) -> str:
    """Returns what stands in the way of a stream's next request, and what to do about it."""
    return f"the stream lane's slot is in use by {holder}; {holder.how_to_free()}"


__all__ = ["StreamLane", "stream_is_busy"]
