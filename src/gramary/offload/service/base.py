"""The row service, running: what an engine may ask of it, and the one on its own threads."""

from __future__ import annotations

import abc
import struct

from gramary.machine.memory import usable_cpus
from gramary.native.offload import RowService, ServiceSpan, StoreArguments, Tenant
from gramary.offload.memory.region import Region
from gramary.settings import Settings
from gramary.tracing import Span

# A span as a worker process sends it: kind, lane, number, begin, end. The number is whatever an
# engine wrote.
RAW_SPAN = struct.Struct("<qqQqq")


class Service(abc.ABC):
    """A running row service.

    Order of calls: construct → `start` (the service answers from then on) → anything else →
    `stop`, at any time. Who constructs it holds it before it starts, so that nothing runs that
    nobody can stop. A service never makes a CUDA call.
    """

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the service, and returns once it answers."""

    @abc.abstractmethod
    def why_dead(self) -> str | None:
        """Returns None while the service lives, else what became of it, in words."""

    @abc.abstractmethod
    def trace(self, on: bool) -> None:
        """Starts or ends the keeping of spans."""

    @abc.abstractmethod
    def take_spans(self) -> list[Span]:
        """Returns the spans kept since the last call."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends the service and waits until it has; may be called again, also if it broke off."""


class ThreadService(Service):
    """The service on native threads of this process.

    Attributes:
        native: the core's service, for test scripts.
    """

    def __init__(
        self, region: Region, stores: tuple[StoreArguments, ...], settings: Settings
    ) -> None:
        self.native = RowService(
            [Tenant(base=region.address, layout=region.ring, stores=stores, hold=region.hold())],
            poll=settings.poll,
            num_threads=num_service_threads(settings),
        )
        self._is_stopped = False

    def start(self) -> None:
        """Starts the service's threads.

        Raises:
            UnsupportedError: the machine has no more threads.
        """
        self.native.start()

    def why_dead(self) -> str | None:
        """Returns what became of the service once it was stopped."""
        return "the row service was stopped" if self._is_stopped else None

    def trace(self, on: bool) -> None:
        """Starts or ends the keeping of spans."""
        self.native.trace(on)

    def take_spans(self) -> list[Span]:
        """Returns the spans kept since the last call."""
        return [span_of(span) for span in self.native.take_spans()]

    def stop(self) -> None:
        """Ends the service's threads."""
        self._is_stopped = True
        self.native.stop()


def span_of(span: ServiceSpan) -> Span:
    """Returns a span of the core's service as the connector tells it."""
    track = f"service, {span.lane} lane"
    return Span(span.kind, track, span.begin_ns, span.end_ns, span.lane, span.number)


# More threads than this gather no faster: the memory is busy.
MAX_THREADS = 8


def spans_from(content: bytes) -> list[Span]:
    """Returns the spans that a worker process sent: five 64-bit numbers each."""
    return [span_of(ServiceSpan.of(*numbers)) for numbers in RAW_SPAN.iter_unpack(content)]


def num_service_threads(settings: Settings) -> int:
    """Returns how many threads may copy rows: the setting, or half of the usable CPUs, at most 8.

    They spin for a while behind each request, beside the lanes' own threads and the engine's; more
    spinning threads than CPUs would wait for each other's time slices.
    """
    return settings.num_threads or max(1, min(MAX_THREADS, usable_cpus() // 2))


__all__ = ["Service", "ThreadService", "num_service_threads"]
