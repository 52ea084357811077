"""Rows of CUDA tables that arrive in a slot: waits and copies are queued on the current stream."""

from __future__ import annotations

import abc

import torch

from gramary.errors import ArgumentError, SlotsBusyError
from gramary.offload.cuda.device import CudaDevice
from gramary.offload.cuda.slots import DeviceSlot
from gramary.offload.cuda.take import settle, take_rows
from gramary.offload.lanes.lane import Claim, Lane


class DeviceLane(Lane):
    """Takes rows in the order of the device's streams, eagerly or captured into a graph.

    How rows are requested, and in which order a slot is used, is a subclass's.

    Args:
        device: what the lanes share.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._num_tables = device.region.num_tables

    def take(self, claim: Claim, table_index: int, out: torch.Tensor) -> None:
        """Queues the wait and the rows on the current stream; see `Lane`."""
        device = self._device
        releases = len(claim.awaited | {table_index}) == self._num_tables
        with device.streams.on_device():
            self._require_same_graph(claim)
            if claim.is_torn:
                self._mend(claim)
            claim.is_being_queued = True
            with device.streams.taking(self.name, claim.number, releases=releases):
                slot = self._slot_in_turn(claim)
                take_rows(
                    slot, table_index, claim.number, device.tables[table_index].codec,
                    device.extents[table_index], out, device.streams, releases=releases,
                )  # fmt: skip
            num_rows = claim.num_tokens * device.tables[table_index].spec.num_heads
            device.counts[table_index].count(num_rows, reads_host=False)
            claim.taken.add(table_index)
            claim.is_being_queued = False

    def release(self, claim: Claim) -> None:
        """Does nothing: the slot is released behind the last table's rows.

        One whose call was broken off is freed by the host.
        """
        if claim.is_torn:
            self.give_up(claim)

    def give_up(self, claim: Claim) -> None:
        """Frees a slot in the order of the current stream; one whose call was broken off, by the
        host.

        Raises:
            ArgumentError: the claim was requested in a graph that is not the one being captured.
        """
        if claim.slot is None:
            return
        with self._device.streams.on_device():
            if claim.is_captured and claim.is_lost and not self._device.streams.is_capturing():
                # A graph that asks and never waits: it is of no use, and nothing of it runs now.
                return
            if not claim.is_torn:
                self._give_up_in_order(claim)
            elif not claim.is_captured:
                # Of one that was captured, the graph did not come to be: nothing of it ever runs.
                claim.number = self._quiet_number(claim)
                self._free_on_host(claim)

    def can_give_up(self, claim: Claim) -> bool:
        """Returns whether the current stream is the one that a claim's slot belongs to."""
        if claim.slot is None:
            return True
        with self._device.streams.on_device():
            if claim.is_captured != self._device.streams.is_capturing():
                return claim.is_captured
            return self._is_of_current_stream(claim)

    @abc.abstractmethod
    def _is_of_current_stream(self, claim: Claim) -> bool:
        """Returns whether the order of the current stream is the slot's."""

    @abc.abstractmethod
    def _give_up_in_order(self, claim: Claim) -> None:
        """Frees the slot of a claim of which the device has what is noted."""

    @abc.abstractmethod
    def _free_on_host(self, claim: Claim) -> None:
        """Frees the slot of a claim once the device has done all that it was given."""

    @abc.abstractmethod
    def _newest_number(self, claim: Claim) -> int:
        """Returns a claim's number, while the device is quiet."""

    @abc.abstractmethod
    def _slot_in_turn(self, claim: Claim) -> DeviceSlot:
        """Returns a claim's slot, behind the release of its slot's request before."""

    def _settle_left(self, claim: Claim) -> None:
        """Queues the wait for the tables that are left, and the release behind the last."""
        left = [
            table_index
            for table_index in range(self._num_tables)
            if table_index not in claim.awaited
        ]
        self._require_same_graph(claim)
        # For good: what breaks off from here on cannot be done twice.
        claim.is_being_queued = True
        for table_index in left:
            slot = self._slot_in_turn(claim)
            self._device.streams.wait(slot.ready_address(table_index), 1)
            settle(slot, table_index, claim.number, releases=table_index == left[-1])

    def _mend(self, claim: Claim) -> None:
        """Makes the tables that are left ready to be taken, behind a call that was broken off."""
        number, region = self._quiet_number(claim), self._device.region
        for table_index in range(self._num_tables):
            is_pending = region.is_requested(claim.held_states, number, table_index)
            # The rows stay where they are until the slot's next request, which is still to come.
            if table_index not in claim.awaited and not is_pending:
                region.raise_ready(claim.held_slot, table_index, number)
        claim.taken &= claim.awaited
        claim.is_being_queued = False

    def _quiet_number(self, claim: Claim) -> int:
        """Returns a claim's number once the device has done all that it was given.

        Raises:
            SlotsBusyError: a graph is being captured, so that nothing may wait for the device.
        """
        streams = self._device.streams
        if streams.is_capturing():
            raise SlotsBusyError(
                f"a call about {claim} was broken off: end the capture of the CUDA graph, and "
                "request again"
            )
        streams.synchronize()
        return self._newest_number(claim)

    def _require_same_graph(self, claim: Claim) -> None:
        if claim.is_captured != self._device.streams.is_capturing():
            raise ArgumentError(
                f"ticket: expected {claim} to be requested and awaited in one CUDA graph, or both "
                "outside of any"
            )


__all__ = ["DeviceLane"]
