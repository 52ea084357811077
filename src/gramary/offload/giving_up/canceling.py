"""Slots given back before all of their rows were taken, as soon as that is safe."""

from __future__ import annotations

import threading

from gramary.offload.lanes.lane import Claim
from gramary.offload.memory.region import Region

# How long to wait for a flag that may never come, because a call was broken off.
GRACE_S = 0.2

GIVEN_UP = "it was given up by its owner"


class CanceledClaims:
    """Claims that the host gives up, whose slot was not released yet; from any thread.

    A slot must be released in the order of its requests: a claim waits here until the one before
    it in its slot was released.

    Args:
        region: the shared memory.
        timeout_s: how long the flag of a published answer may take.
    """

    def __init__(self, region: Region, timeout_s: float) -> None:
        self._region = region
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._claims: list[Claim] = []

    def add(self, claim: Claim) -> None:
        """Takes a claim whose rows nobody waits for, and settles what can be settled."""
        with self._turn:
            if claim not in self._claims:
                self._claims.append(claim)
        self.settle()

    def settle(self) -> None:
        """Releases the slots of claims whose turn has come."""
        with self._turn:
            for claim in list(self._claims):
                before = claim.number - len(self._region.ring.host_slots)
                if self._region.released(claim.held_slot) < before:
                    continue
                free_slot(self._region, claim, self._timeout_s)
                self._claims.remove(claim)


def free_slot(region: Region, claim: Claim, timeout_s: float) -> None:
    """Gives up what is still to come of a claim and frees its slot; more calls do nothing.

    Each step can be done again, so that the next call goes on where one was broken off. It must be
    the claim's turn, and no device may read or write the slot.

    Args:
        region: the shared memory.
        claim: with a slot and a number; one without holds nothing.
        timeout_s: how long the flag of a published answer may take.
    """
    slot, places = claim.slot, claim.states
    if slot is None or places is None:
        return
    if not region.was_asked(places, claim.number) or region.released(slot) >= claim.number:
        return
    for table_index in range(region.num_tables):
        if table_index in claim.settled:
            continue
        is_again = table_index in claim.giving_up
        claim.giving_up.add(table_index)
        if region.abandon(places, claim.number, table_index):
            claim.settled[table_index] = GIVEN_UP
            continue
        if not region.is_settled(places, claim.number, table_index):
            # A word that neither side wrote promises no flag.
            claim.settled[table_index] = ""
            continue
        # Published, or given up by the watchdog: whoever did it raises the flag at once. Unless an
        # interrupt came behind our own giving up, or a device has lowered the flag again.
        may_be_ours = is_again and region.is_abandoned(places, claim.number, table_index)
        region.wait_ready(slot, table_index, GRACE_S if may_be_ours or claim.is_torn else timeout_s)
        claim.settled[table_index] = ""
    region.free_slot(slot, claim.number)


__all__ = ["CanceledClaims", "free_slot"]
