"""Giving requests up that a GPU waits for: no host thread waits for those itself."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

from gramary.errors import FetchTimeoutError, no_threads
from gramary.native.ring import SlotPlaces, StatePlaces
from gramary.offload.giving_up.canceling import CanceledClaims
from gramary.offload.giving_up.fetch_error import timed_out
from gramary.offload.giving_up.quarantine import Quarantine
from gramary.offload.lanes.lane import Claim
from gramary.offload.memory.region import Region
from gramary.offload.service.base import Service

LOOK_EVERY_S = 0.02
CLOSING_LOOK_EVERY_S = 0.001


@dataclasses.dataclass(frozen=True)
class _Watched:
    """A request as the watchdog sees it: where it stands, and what to call it."""

    places: StatePlaces
    slot: SlotPlaces
    number: int
    name: str


class Watchdog:
    """A thread that looks at requests under way and lets streams go that wait in vain.

    A request that is neither answered nor given up `timeout_s` after it was first seen, or whose
    service is dead, is given up by a swap of its state word; whoever wins the swap raises the
    flag. Nothing here makes a CUDA call or takes a lock that is held across one.

    Args:
        region: the shared memory.
        service: asked for its life.
        timeout_s: how long an answer may take once the service can work on it.
        quarantine: told of slots given up.
        canceled: settled at each look, so that a stream never waits for a host that waits for it.
        report: called with the error of each table given up.
    """

    def __init__(
        self,
        region: Region,
        service: Service,
        timeout_s: float,
        quarantine: Quarantine,
        canceled: CanceledClaims,
        report: Callable[[FetchTimeoutError], None],
    ) -> None:
        self._region = region
        self._service = service
        self._timeout_s = timeout_s
        self._quarantine = quarantine
        self._canceled = canceled
        self._report = report
        self._turn = threading.Lock()
        self._claims: list[Claim] = []
        self._first_seen: dict[tuple[SlotPlaces, int], float] = {}
        self._given_up: dict[SlotPlaces, int] = {}
        self._why_closed: str | None = None
        self._wakes = threading.Event()
        self._is_stopping = False
        self.num_given_up = 0
        self._thread = threading.Thread(target=self._run, name="gramary-watchdog", daemon=True)

    def start(self) -> None:
        """Starts looking.

        Raises:
            UnsupportedError: the machine starts no more threads.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            raise no_threads("the connector's watchdog cannot start its thread", error) from error

    def watch(self, claim: Claim) -> None:
        """Watches a host-lane claim too; the stream lane's requests are found in their slots."""
        with self._turn:
            self._claims.append(claim)

    def was_given_up(self, slot: SlotPlaces, number: int) -> bool:
        """Returns whether this request of a slot, or a later one, was given up."""
        return self._given_up.get(slot, 0) >= number

    def give_all_up(self, why: str) -> None:
        """From now on gives every request up at sight."""
        self._why_closed = why
        self._wakes.set()

    def stop(self) -> None:
        """Ends the thread and waits until it has; a second call does nothing."""
        self._is_stopping = True
        self._wakes.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self) -> None:
        """Looks once at everything under way."""
        self._canceled.settle()
        with self._turn:
            now = time.monotonic()
            why = self._why_closed or self._service.why_dead()
            self._claims = [claim for claim in self._claims if self._is_pending(claim)]
            watched = [self._host_request(claim) for claim in self._claims]
            watched += [self._stream_request(slot) for slot in self._region.ring.stream_slots]
            seen: dict[tuple[SlotPlaces, int], float] = {}
            for request in watched:
                if request is not None and self._tables_left(request.places, request.number):
                    key = (request.slot, request.number)
                    seen[key] = self._first_seen.get(key, now)
                    self._judge(request, now - seen[key], why)
            self._first_seen = seen

    def _run(self) -> None:
        while not self._is_stopping:
            self.look()
            is_closing = self._why_closed is not None
            every_s = CLOSING_LOOK_EVERY_S if is_closing else LOOK_EVERY_S
            self._wakes.wait(min(every_s, self._timeout_s / 4))
            if not self._is_stopping:
                self._wakes.clear()

    def _judge(self, request: _Watched, age_s: float, why: str | None) -> None:
        # Behind a request given up that the service hangs on, nobody waits for the time-out anew.
        hangs = self._quarantine.is_locked(request.slot)
        if age_s <= self._timeout_s and why is None and not hangs:
            return
        for table_index in self._tables_left(request.places, request.number):
            if not self._region.abandon(request.places, request.number, table_index):
                continue
            self._quarantine.add(request.slot, request.number)
            self._given_up[request.slot] = request.number
            self.num_given_up += 1
            if self._why_closed is None:
                self._report(timed_out(request.name, table_index, self._timeout_s, why))
            # Last: whoever wakes finds all of the above.
            self._region.raise_ready(request.slot, table_index, request.number)

    def _tables_left(self, places: StatePlaces, number: int) -> list[int]:
        tables = range(self._region.num_tables)
        return [i for i in tables if self._region.is_requested(places, number, i)]

    def _is_pending(self, claim: Claim) -> bool:
        places = claim.held_states
        return not claim.is_canceled and bool(self._tables_left(places, claim.number))

    def _host_request(self, claim: Claim) -> _Watched | None:
        """Returns a claim's request, or None while the service waits for its slot."""
        slot = claim.held_slot
        before = claim.number - len(self._region.ring.host_slots)
        if before > 0 and self._region.released(slot) < before:
            return None
        return _Watched(claim.held_states, slot, claim.number, str(claim))

    def _stream_request(self, slot: SlotPlaces) -> _Watched:
        number = self._region.slot_number(slot)
        index = self._region.ring.stream_slots.index(slot)
        return _Watched(slot, slot, number, f"request {number} of stream slot {index}")


__all__ = ["Watchdog"]
