"""The host lane of CUDA tables: requested by the host, taken in the order of any stream."""

from __future__ import annotations

from gramary.batch import Batch
from gramary.offload.cuda.device import CudaDevice
from gramary.offload.cuda.device_lane import DeviceLane
from gramary.offload.cuda.slots import DeviceSlot
from gramary.offload.lanes.host_lane import HostRequests
from gramary.offload.lanes.lane import Claim


class DeviceHostLane(DeviceLane):
    """Rows that are fetched while earlier forwards still run.

    Args:
        requests: numbers and slots of the lane.
        device: what the lanes share.
    """

    name = "host"
    title = "the host lane"

    def __init__(self, requests: HostRequests, device: CudaDevice) -> None:
        super().__init__(device)
        self._requests = requests

    def request(self, claim: Claim, batch: Batch) -> None:
        """Copies the batch's inputs and rings; see `HostRequests`."""
        self._requests.request(claim, batch)
        self._device.watchdog.watch(claim)

    def _is_of_current_stream(self, claim: Claim) -> bool:  # noqa: ARG002
        return True

    def _give_up_in_order(self, claim: Claim) -> None:
        if claim.awaited:
            self._settle_left(claim)
        else:
            self._free_on_host(claim)

    def _free_on_host(self, claim: Claim) -> None:
        claim.is_canceled = True
        self._device.canceled.add(claim)

    def _newest_number(self, claim: Claim) -> int:
        self._device.canceled.settle()
        return claim.number

    def _slot_in_turn(self, claim: Claim) -> DeviceSlot:
        slots = self._device.slots
        slot = slots.at(claim.held_slot)
        before = claim.number - len(slots.host)
        if before > 0:
            # The flag may still be that of the slot's last request: canceled, or on another
            # stream. It is lowered before that one is released.
            self._device.streams.wait(slot.released_address, before & 0xFFFFFFFF)
        return slot


__all__ = ["DeviceHostLane"]
