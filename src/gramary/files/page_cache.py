"""The page cache, used as a guest: pages that were there stay, pages we bring in are let go.

Which pages were there is asked with mincore(2). The kernel answers only for files that the
process owns or may write; for others every page counts as there, and none is let go.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gramary.lifetime import Closing

PAGE_BYTES = mmap.PAGESIZE
# The kernel caches up to so many pages as one unit, which goes only if all of it is let go of.
_MAX_FOLIO_PAGES = 1024
_LIBC = ctypes.CDLL(None)
_BYTES = ctypes.POINTER(ctypes.c_ubyte)


class Span(NamedTuple):
    """Bytes `begin` .. `end`-1 of the file behind a descriptor."""

    descriptor: int
    begin: int
    end: int


class PageCacheGuest(Closing):
    """Reads ahead, and afterwards lets go of the pages that reading brought into the page cache.

    Call `announce(spans)` before a group of spans is read and `let_go()` after it was read; groups
    are let go of in the order of their announcement, and any number may be announced. `close()`
    lets go of what is left. Descriptors are the caller's and stay open until then.

    Invariant: a page that was cached when a span over it was first announced is never let go of.
    """

    def __init__(self) -> None:
        self._announced: deque[list[tuple[Span, npt.NDArray[np.bool_]]]] = deque()
        # Whether we brought in a page that spans share at their ends: the later span would take
        # it for one that was there.
        self._shared: dict[tuple[int, int], bool] = {}
        self._last_run: dict[int, tuple[int, int]] = {}

    def announce(self, spans: Iterable[Span]) -> None:
        """Notes which pages of the spans are cached and starts reading the others."""
        group = []
        for span in spans:
            if span.descriptor not in self._last_run:
                # Only what is announced is to be read ahead; the kernel would read further.
                _advise(Span(span.descriptor, 0, 0), os.POSIX_FADV_RANDOM)
                self._last_run[span.descriptor] = (0, 0)
            is_ours = ~resident_pages(span)
            first_page = span.begin // PAGE_BYTES
            for index in {0, is_ours.size - 1} if is_ours.size else ():
                key = (span.descriptor, first_page + index)
                is_ours[index] = self._shared.setdefault(key, bool(is_ours[index]))
            _advise(span, os.POSIX_FADV_WILLNEED)
            group.append((span, is_ours))
        self._announced.append(group)

    def let_go(self) -> None:
        """Lets go of the pages of the oldest group that were not cached when it was announced."""
        for span, is_ours in self._announced.popleft():
            first_page = span.begin // PAGE_BYTES
            # The last page may hold the start of the next span, which is still to be read.
            whole = is_ours[: span.end // PAGE_BYTES - first_page]
            for begin, end in _runs_of_true(whole):
                self._drop(span.descriptor, first_page + begin, first_page + end)

    def close(self) -> None:
        """Lets go of everything that is left."""
        while self._announced:
            self.let_go()
        for (descriptor, page), is_ours in self._shared.items():
            if is_ours:
                _drop_pages(descriptor, page, page + 1)
        self._shared.clear()

    def _drop(self, descriptor: int, begin: int, end: int) -> None:
        """Drops the pages `begin` .. `end`-1, all of which are ours."""
        last_begin, last_end = self._last_run[descriptor]
        if last_end == begin:
            # A unit of the cache that lies across the seam goes only with both its sides.
            begin = max(last_begin, begin - _MAX_FOLIO_PAGES)
        _drop_pages(descriptor, begin, end)
        self._last_run[descriptor] = (begin, end)


def resident_pages(span: Span) -> npt.NDArray[np.bool_]:
    """Returns for each page that a span touches whether the page cache holds it.

    Where that cannot be told, every page counts as held.
    """
    first_page = span.begin // PAGE_BYTES
    num_pages = -(-span.end // PAGE_BYTES) - first_page
    if num_pages <= 0:
        return np.zeros(0, np.bool_)
    answer = np.ones(num_pages, np.uint8)
    length = span.end - first_page * PAGE_BYTES
    try:
        mapping = mmap.mmap(
            span.descriptor, length, prot=mmap.PROT_READ, offset=first_page * PAGE_BYTES
        )
    except (OSError, ValueError):
        return answer.astype(np.bool_)
    # Nothing is read through the mapping: a file that shrinks meanwhile does no harm.
    view = np.frombuffer(mapping, np.uint8)
    failed = _LIBC.mincore(
        ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(length), answer.ctypes.data_as(_BYTES)
    )
    del view
    mapping.close()
    return (answer & 1).astype(np.bool_) if not failed else np.ones(num_pages, np.bool_)


def tells_residency(descriptor: int) -> bool:
    """Returns whether this process may ask which pages of a file are cached.

    Source: mincore(2); the kernel says "all of them" to whoever neither owns nor may write it.
    """
    if os.geteuid() in (0, os.fstat(descriptor).st_uid):
        return True
    return os.access(f"/proc/self/fd/{descriptor}", os.W_OK, effective_ids=True)


def _runs_of_true(flags: npt.NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """Yields (begin, end) of each run of true elements."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0)).tolist()
    return zip(edges[::2], edges[1::2], strict=True)


def _drop_pages(descriptor: int, begin: int, end: int) -> None:
    _advise(Span(descriptor, begin * PAGE_BYTES, end * PAGE_BYTES), os.POSIX_FADV_DONTNEED)


def _advise(span: Span, advice: int) -> None:
    # Advice that a file system does not take changes no result.
    with contextlib.suppress(OSError):
        os.posix_fadvise(span.descriptor, span.begin, span.end - span.begin, advice)
