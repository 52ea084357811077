"""Slots that nothing may be requested in, because the service is still at work there."""

from __future__ import annotations

import threading

from gramary.errors import FetchTimeoutError
from gramary.native.ring import SlotPlaces
from gramary.offload.memory.region import Region


class Quarantine:
    """Slots whose request was given up, until the service is through with it; from any thread.

    Attributes:
        slots: the locked ones, each with the request that locks it; those that were answered since
            may still be among them.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._turn = threading.Lock()
        self.slots: dict[SlotPlaces, int] = {}

    def add(self, slot: SlotPlaces, number: int) -> None:
        """Locks the slot of a request that was given up."""
        with self._turn:
            self.slots[slot] = number

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
            number = self.slots.get(slot, 0)
            if self._region.done(slot) < number:
                return number
            self.slots.pop(slot, None)
            return 0


__all__ = ["Quarantine"]
