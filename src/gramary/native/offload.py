"""The row service of the core, and words of the memory it shares with an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gramary.errors import ClosedError, no_threads
from gramary.native import _core

# What the service needs of one table: its hash (`NgramHasher.core`), the rows that it can
# reach, whether a device reads the results next, and what keeps the rows' memory and reader.
StoreArguments = _core.StoreArguments
# A region to serve: its address and layout, a store for each table, and what keeps its memory.
Tenant = _core.TenantArguments


@dataclasses.dataclass(frozen=True)
class ServiceSpan:
    """What the service did when: kind, lane, request, and CLOCK_MONOTONIC nanoseconds."""

    kind: str
    lane: str
    number: int
    begin_ns: int
    end_ns: int

    @classmethod
    def of(cls, kind: int, lane: int, number: int, begin_ns: int, end_ns: int) -> ServiceSpan:
        """Returns a span of the core's numbers."""
        return cls(_SPAN_KINDS[kind], _LANES[lane], number, begin_ns, end_ns)


_SPAN_KINDS = ("wait_previous_request", "gather", "read_disk", "publish")
_LANES = ("host", "stream")


class RowService:
    """Native threads that answer the requests of one region or several.

    What the threads read is kept until `stop`, or until its tenant has left and is forgotten.
    A region left is marked as stopped, and nothing of it is touched any more.

    Args:
        tenants: the regions.
        poll: "adaptive", "spin" or "sleep".
        num_threads: threads that may copy rows of one request.
    """

    def __init__(
        self, tenants: Sequence[Tenant], *, poll: str = "adaptive", num_threads: int = 1
    ) -> None:
        self._core: _core.RowService | None = _core.RowService(tenants, poll, num_threads)
        self._spans_left: list[tuple[int, int, int, int, int]] = []

    def start(self) -> None:
        """Starts serving, with fewer threads where the machine starts no more than two.

        Raises:
            UnsupportedError: it does not start those either.
        """
        try:
            self._running().start()
        except RuntimeError as error:
            raise no_threads("the row service cannot start its threads", error) from error

    def stop(self) -> None:
        """Ends the service; requests in flight stay unanswered. A second call does nothing."""
        core = self._core
        if core is None:
            return
        core.stop()
        if self._core is not None:
            self._spans_left += core.take_spans()
            # Nobody else must be gone for the core's memory to be.
            self._core = None

    def ask_to_leave(self, tenant: int) -> None:
        """Has the service leave one of its tenants, by its index; returns at once."""
        self._running().ask_to_leave(tenant)

    def has_left(self, tenant: int) -> bool:
        """Returns whether nothing of a tenant is touched any more."""
        return self._core is None or self._core.has_left(tenant)

    def forget(self, tenant: int) -> None:
        """Lets go of the memory of a tenant that has left."""
        if self._core is not None:
            self._core.forget(tenant)

    def trace(self, on: bool) -> None:
        """Starts or ends the keeping of spans."""
        self._running().trace(on)

    def take_spans(self) -> list[ServiceSpan]:
        """Returns the spans kept since the last call, and forgets them."""
        return [ServiceSpan.of(*span) for span in self.take_raw_spans()]

    def take_raw_spans(self) -> list[tuple[int, int, int, int, int]]:
        """Returns the same as numbers, for `ServiceSpan.of` in another process."""
        spans, self._spans_left = self._spans_left, []
        return spans + ([] if self._core is None else self._core.take_spans())

    def hold(self, held: bool) -> None:
        """For tests: keeps every answer back until let go."""
        self._running().hold(held)

    def set_script(
        self, *, min_delay_us: int = 0, max_delay_us: int = 0, fail_every: int = 0, seed: int = 0
    ) -> None:
        """For tests: random delays before answers, and every n-th answer a failure (EIO)."""
        self._running().set_script(min_delay_us, max_delay_us, fail_every, seed)

    def _running(self) -> _core.RowService:
        if self._core is None:
            raise ClosedError("the row service was stopped")
        return self._core


def time_answer(slot: int, ready: int, number: int, timeout_s: float = 10.0) -> int:
    """Raises a stream request whose ids are in place and takes its answer, as a GPU would.

    Args:
        slot: address of the slot's header.
        ready: address of its flag.
        number: the request's number, one more than the slot's last.
        timeout_s: how long to wait.

    Returns:
        Nanoseconds from the number to the flag; -1 after the time-out.
    """
    return int(_core.time_answer(slot, ready, number, timeout_s))


def load_u32(address: int) -> int:
    """Returns a 32-bit word (acquire)."""
    return int(_core.load_u32(address))


def load_u64(address: int) -> int:
    """Returns a 64-bit word (acquire)."""
    return int(_core.load_u64(address))


def store_u32(address: int, value: int) -> None:
    """Writes a 32-bit word (release)."""
    _core.store_u32(address, value)


def raise_u32(address: int, value: int) -> None:
    """Raises a 32-bit word that is counted around; one that is further already stays."""
    _core.raise_u32(address, value)


def store_u64(address: int, value: int) -> None:
    """Writes a 64-bit word (release)."""
    _core.store_u64(address, value)


__all__ = [
    "RowService",
    "ServiceSpan",
    "StoreArguments",
    "Tenant",
    "load_u32",
    "load_u64",
    "raise_u32",
    "store_u32",
    "store_u64",
    "time_answer",
]
