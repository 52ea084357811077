"""What a device's streams did when, from events: also inside graphs, where no host code runs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from gramary.offload.cuda.streams import Event, Streams
from gramary.tracing import Span, SpanLog
from gramary.tracing.nvtx import has_nvtx, nvtx_range
from gramary.tracing.spans import MAX_SPANS


@dataclasses.dataclass(frozen=True)
class _Timed:
    """A span whose ends are events, or a time of the host's."""

    name: str
    begin: Event | int
    end: Event
    lane: str
    number: int
    is_captured: bool


class DeviceSpans:
    """Spans on the streams of one device, kept while switched on; from one thread.

    Events are queued where a span begins and ends, and read when spans are taken. A graph that is
    captured meanwhile holds its events: each replay records them anew.

    Args:
        streams: the device's streams.
        track: who the spans belong to.
    """

    def __init__(self, streams: Streams, track: str) -> None:
        self._streams = streams
        self._log = SpanLog(track)
        self._timed: list[_Timed] = []
        self._num_untimed = 0
        # A graph refers to every event that it records, also where no span came of it.
        self._captured: list[Event] = []
        self._reference: Event | None = None
        self._reference_ns = 0
        self._has_nvtx = False

    @property
    def is_on(self) -> bool:
        """Whether spans are kept."""
        return self._log.is_on

    @property
    def num_dropped(self) -> int:
        """Spans that were not kept, because those before were not taken."""
        return self._num_untimed + self._log.num_dropped

    def switch(self, on: bool) -> None:
        """Starts or ends the keeping of spans; starting waits for the device, to set its clock."""
        if on:
            with self._streams.on_device():
                self._reference = self._streams.new_event()
                self._streams.synchronize()
                self._reference.record()
                self._streams.synchronize()
                self._reference_ns = time.monotonic_ns()
            self._has_nvtx = has_nvtx()
        self._log.switch(on)

    def mark(self) -> Event | None:
        """Queues an event on the current stream; None while off."""
        if not self.is_on:
            return None
        event = self._streams.new_event()
        event.record()
        if self._streams.is_capturing():
            self._captured.append(event)
        return event

    def add(
        self, name: str, begin: Event | int | None, end: Event | None, lane: str, number: int
    ) -> None:
        """Keeps a span between two marks, or from a time of `time.monotonic_ns` on."""
        if begin is None or end is None or not self.is_on:
            return
        is_captured = self._streams.is_capturing()
        if is_captured and isinstance(begin, int):
            # No host code runs in a replay.
            return
        if len(self._timed) >= MAX_SPANS:
            self._num_untimed += 1
            return
        self._timed.append(_Timed(name, begin, end, lane, number, is_captured))

    @contextlib.contextmanager
    def span(self, name: str, lane: str = "", number: int = 0) -> Iterator[None]:
        """Makes a span of what a block queues; an NVTX range while it queues it."""
        begin = self.mark()
        try:
            with self.nvtx_range(name):
                yield
        finally:
            self.add(name, begin, self.mark(), lane, number)

    def nvtx_range(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Returns a block that profilers with NVTX show, while spans are kept."""
        return nvtx_range(name, is_on=self.is_on and self._has_nvtx)

    def take(self) -> list[Span]:
        """Returns the spans kept since the last call, and of each graph those of its last replay.

        Waits for the device.
        """
        if not self._timed:
            return []
        with self._streams.on_device():
            self._streams.synchronize()
        for timed in self._timed:
            # Of a graph that was not replayed yet, there is no time.
            with contextlib.suppress(RuntimeError):
                begin, end = self._time_of(timed.begin), self._time_of(timed.end)
                self._log.keep(timed.name, begin, max(begin, end), timed.lane, timed.number)
        self._timed = [timed for timed in self._timed if timed.is_captured]
        return self._log.take()

    def _time_of(self, mark: Event | int) -> int:
        if isinstance(mark, int):
            return mark
        assert self._reference is not None
        return self._reference_ns + round(self._reference.elapsed_time(mark) * 1e6)


class TimedStreams:
    """Streams whose waits become spans, and what they do between waits, the copying.

    Args:
        streams: the device's streams.
        spans: told of them.
    """

    def __init__(self, streams: Streams, spans: DeviceSpans) -> None:
        self._streams = streams
        self._spans = spans
        self._request = ("", 0)
        self._copies_since: Event | None = None

    def wait(self, address: int, value: int) -> None:
        """Waits as the streams do; a span `wait_rows`, and before it `copy_rows`."""
        if not self._spans.is_on:
            self._streams.wait(address, value)
            return
        begin = self._spans.mark()
        self._spans.add("copy_rows", self._copies_since, begin, *self._request)
        with self._spans.nvtx_range("wait_rows"):
            self._streams.wait(address, value)
        self._copies_since = self._spans.mark()
        self._spans.add("wait_rows", begin, self._copies_since, *self._request)

    @contextlib.contextmanager
    def taking(self, lane: str, number: int, *, releases: bool) -> Iterator[None]:
        """Says whose rows a block waits for and copies, and whether it releases their slot."""
        self._request = (lane, number)
        try:
            with self._spans.nvtx_range("copy_rows"):
                yield
        finally:
            end = self._spans.mark()
            self._spans.add("copy_rows", self._copies_since, end, *self._request)
            if releases:
                self._spans.add("release", end, end, *self._request)
            self._copies_since = None

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """As the streams do."""
        return self._streams.on_device()

    def key(self) -> int:
        """As the streams do."""
        return self._streams.key()

    def is_capturing(self) -> bool:
        """As the streams do."""
        return self._streams.is_capturing()

    def new_event(self) -> Event:
        """As the streams do."""
        return self._streams.new_event()

    def synchronize(self) -> None:
        """As the streams do."""
        self._streams.synchronize()


__all__ = ["DeviceSpans", "TimedStreams"]
