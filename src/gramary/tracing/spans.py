"""Spans of time on one clock, kept while somebody wants them."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator

from gramary.tracing.nvtx import has_nvtx, nvtx_range

# What a connector's spans are called, in the order of a request's life.
SPAN_NAMES = (
    "wait_previous_request",
    "write_inputs",
    "wait_tokens",
    "gather",
    "read_disk",
    "publish",
    "wait_rows",
    "copy_rows",
    "release",
)

# Spans kept by one log; later ones are counted, and dropped.
MAX_SPANS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Span:
    """What was done from when to when.

    Attributes:
        name: one of SPAN_NAMES, or a word of the caller's own.
        track: who did it: spans of one track follow each other or lie within each other.
        begin_ns: start on CLOCK_MONOTONIC (`time.monotonic_ns`), in nanoseconds.
        end_ns: end, likewise.
        lane: "host", "stream", or "" where there is none.
        number: the request's number in its lane, 0 where it is not known.
    """

    name: str
    track: str
    begin_ns: int
    end_ns: int
    lane: str = ""
    number: int = 0


# A block without a span.
NOTHING = contextlib.nullcontext()


class SpanLog:
    """Spans of one track, kept while switched on; from any thread.

    Off, a span costs one look at an attribute. On, it is an NVTX range too, where there is CUDA.

    Args:
        track: who the spans belong to.

    Attributes:
        is_on: whether spans are kept; set by `switch`.
        num_dropped: spans that were not kept, because nobody took those before.
    """

    def __init__(self, track: str) -> None:
        self.track = track
        self.num_dropped = 0
        self.is_on = False
        self._has_nvtx = False
        self._turn = threading.Lock()
        self._spans: list[Span] = []

    def switch(self, on: bool) -> None:
        """Starts or ends the keeping of spans; what was kept stays until it is taken."""
        self._has_nvtx = on and has_nvtx()
        self.is_on = on

    def span(
        self, name: str, lane: str = "", number: int = 0
    ) -> contextlib.AbstractContextManager[object]:
        """Returns a block whose time becomes a span, also where it raises."""
        if not self.is_on:
            return NOTHING
        return self._open(name, lane, number)

    @contextlib.contextmanager
    def _open(self, name: str, lane: str, number: int) -> Iterator[None]:
        with nvtx_range(name, is_on=self._has_nvtx):
            begin_ns = time.monotonic_ns()
            try:
                yield
            finally:
                self.keep(name, begin_ns, time.monotonic_ns(), lane, number)

    def add(self, name: str, begin_ns: int, end_ns: int, lane: str = "", number: int = 0) -> None:
        """Keeps a span whose times are known already."""
        if self.is_on:
            self.keep(name, begin_ns, end_ns, lane, number)

    def keep(self, name: str, begin_ns: int, end_ns: int, lane: str = "", number: int = 0) -> None:
        """Keeps a span that began while the log was on, whatever it is now."""
        with self._turn:
            if len(self._spans) < MAX_SPANS:
                self._spans.append(Span(name, self.track, begin_ns, end_ns, lane, number))
            else:
                self.num_dropped += 1

    def take(self) -> list[Span]:
        """Returns the spans kept since the last call, and forgets them."""
        with self._turn:
            spans, self._spans = self._spans, []
            return spans


__all__ = ["MAX_SPANS", "NOTHING", "SPAN_NAMES", "Span", "SpanLog"]
