"""The stream lane of CUDA tables: the device hashes, requests and takes, also inside a graph."""

from __future__ import annotations

import time

from gramary.batch import Batch
from gramary.errors import SlotsBusyError, UnsupportedError
from gramary.flat_batch import FlatBatch
from gramary.offload.cuda.device import CudaDevice
from gramary.offload.cuda.device_lane import DeviceLane
from gramary.offload.cuda.request import write_request
from gramary.offload.cuda.slots import DeviceSlot
from gramary.offload.giving_up.canceling import free_slot
from gramary.offload.lanes.lane import Claim
from gramary.offload.lanes.stream_lane import stream_is_busy
from gramary.table import Table


class DeviceStreamLane(DeviceLane):
    """Requests that kernels of the current stream write.

    A stream has a slot for itself, from its first request on. A graph keeps the slot of the stream
    it was captured on: its replays, and other work of that stream, must not overlap.

    Args:
        device: what the lanes share.
    """

    name = "stream"
    title = "the stream lane"

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device)
        # Slots by stream, and the newest claim on each; one that is released holds it no more.
        self._given: dict[int, DeviceSlot] = {}
        self._holders: dict[DeviceSlot, Claim] = {}

    def request(self, claim: Claim, batch: Batch) -> None:
        """Queues a request on the current stream; see `Lane`.

        Raises:
            UnsupportedError: host tensors, while the stream is captured.
        """
        device = self._device
        with device.streams.on_device():
            is_capturing = device.streams.is_capturing()
            slot = self._slot_of_stream()
            holder = self._holders.get(slot)
            if holder is not None and not holder.is_released:
                raise SlotsBusyError(why_busy(holder))
            if slot.places in device.quarantine.slots and not is_capturing:
                device.quarantine.require_free(slot.places)
            asked_ns = time.monotonic_ns()
            batches = [self._on_device(batch, table) for table in device.tables]
            # Before it has a slot: one with a slot that is not being queued was asked for.
            claim.is_being_queued, claim.is_captured = True, is_capturing
            claim.slot = claim.states = slot.places
            self._holders[slot] = claim
            # In stream order: the batch's tokens are there when the kernel begins.
            begin = device.spans.mark()
            device.spans.add("wait_tokens", asked_ns, begin, self.name, 0)
            with device.spans.span("write_inputs", self.name):
                self._write_request(slot, batches)
            claim.is_being_queued = False

    def _write_request(self, slot: DeviceSlot, batches: list[FlatBatch]) -> None:
        """Queues the kernels that write a request's ids, and behind them its number."""
        last = self._num_tables - 1
        for table_index, extent in enumerate(self._device.extents):
            write_request(
                slot,
                table_index,
                self._device.constants[table_index],
                batches[table_index],
                device_extent=extent,
                is_last_table=table_index == last,
            )

    def _is_of_current_stream(self, claim: Claim) -> bool:
        key = self._device.streams.key()
        return self._given.get(key) is self._device.slots.at(claim.held_slot)

    def _give_up_in_order(self, claim: Claim) -> None:
        self._settle_left(claim)

    def _free_on_host(self, claim: Claim) -> None:
        if claim.number:
            free_slot(self._device.region, claim, self._device.timeout_s)

    def _newest_number(self, claim: Claim) -> int:
        # The device counts. One that was never written there is an older request, and released.
        return self._device.region.slot_number(claim.held_slot)

    def _slot_in_turn(self, claim: Claim) -> DeviceSlot:
        return self._device.slots.at(claim.held_slot)

    def _slot_of_stream(self) -> DeviceSlot:
        key = self._device.streams.key()
        if key not in self._given:
            slots = self._device.slots.stream
            if len(self._given) == len(slots):
                raise SlotsBusyError(
                    f"{len(self._given)} streams have the slots of the stream lane: request on one "
                    "of them"
                )
            self._given[key] = slots[len(self._given)]
        return self._given[key]

    def _on_device(self, batch: Batch, table: Table) -> FlatBatch:
        tokens = batch.token_ids
        own = self._device.device
        if tokens.device != own and self._device.streams.is_capturing():
            raise UnsupportedError(
                f"batch: expected tensors on {own} while a CUDA graph is captured (its replays "
                f"would not see host tensors change), got {tokens.device}"
            )
        return batch.flat(table.spec.history_length).to(own)


def why_busy(holder: Claim) -> str:
    """Returns what stands in the way of a stream's next request, and what to do about it."""
    if holder.is_lost:
        return (
            f"the stream lane's slot is in use by {holder}, whose owner is gone: request once "
            "outside of a CUDA graph, which frees it"
        )
    return stream_is_busy(holder)


__all__ = ["DeviceStreamLane"]
