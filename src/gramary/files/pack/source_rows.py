"""The rows of a table in order, at the storage's own speed and past the page cache.

Packing reads a whole table once. Through the page cache that costs a page and a copy for every
4 KiB and pushes out what serves; O_DIRECT costs neither. What the page cache holds already is read
from there.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Generator

import numpy as np
import torch

from gramary.files.layout import RowLayout
from gramary.files.page_cache import Span, resident_pages, tells_residency
from gramary.files.stream import RowReader, check_row_range
from gramary.files.task_threads import TaskThreads

# What O_DIRECT asks of offsets, lengths and memory, on every file system that is known.
ALIGNMENT = 4096


class DirectRowReader(RowReader):
    """A `RowReader` that reads with O_DIRECT where the file system allows it."""

    def __init__(self, layout: RowLayout) -> None:
        super().__init__(layout)
        self._direct: dict[int, int] = {}
        self._buffer = mmap.mmap(-1, ALIGNMENT)

    def close(self) -> None:
        """Closes the files."""
        while self._direct:
            descriptor = self._direct.popitem()[1]
            if descriptor >= 0:
                os.close(descriptor)
        super().close()

    def _read_bytes(self, file: int, offset: int, out: torch.Tensor) -> None:
        descriptor = self._open_direct(file)
        if descriptor < 0 or _is_mostly_cached(self._open(file), offset, out.numel()):
            super()._read_bytes(file, offset, out)
            return
        begin = offset // ALIGNMENT * ALIGNMENT
        end = -(-(offset + out.numel()) // ALIGNMENT) * ALIGNMENT
        if len(self._buffer) < end - begin:
            self._buffer = mmap.mmap(-1, end - begin)
        try:
            num_bytes = os.preadv(descriptor, [memoryview(self._buffer)[: end - begin]], begin)
        except OSError:
            num_bytes = 0
        if begin + num_bytes < offset + out.numel():
            # Short, interrupted or refused: the plain way reads it or says what is wrong.
            super()._read_bytes(file, offset, out)
            return
        # By numpy: torch would put all threads on a copy that is over before they are awake.
        read = np.frombuffer(self._buffer, np.uint8, out.numel(), offset - begin)
        np.copyto(out.view(-1).numpy(), read)

    def _open_direct(self, file: int) -> int:
        """Returns a descriptor with O_DIRECT of the file that `_open` holds, or -1."""
        if file not in self._direct:
            self._direct[file] = -1
            with contextlib.suppress(OSError):
                # By descriptor: the same file, whatever became of its name.
                path = f"/proc/self/fd/{self._open(file)}"
                self._direct[file] = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        return self._direct[file]


def stream_source(
    layout: RowLayout, first_row: int, end_row: int, chunk_rows: int
) -> Generator[tuple[int, torch.Tensor], None, None]:
    """Yields the rows `first_row` .. `end_row - 1` in chunks; the next one is read meanwhile.

    Close it where it may not run to its end: it has a thread, and a collector that ends that later
    may do so while another thread starts, when neither can go on.

    Args:
        layout: where the rows lie.
        first_row: first row.
        end_row: one past the last row.
        chunk_rows: most rows in a chunk.

    Yields:
        (first row, rows uint8 [n, row_bytes]) of each chunk; the tensor holds until the next.

    Raises:
        ArgumentError: the rows are not all in the table.
        RowReadError, ChecksumError: as `read_rows`.
    """
    check_row_range(layout, first_row, end_row - first_row)
    shape = (min(chunk_rows, end_row - first_row), layout.row_bytes)
    buffers = [torch.empty(shape, dtype=torch.uint8, device="cpu") for _ in range(2)]
    starts = range(first_row, end_row, chunk_rows)
    with DirectRowReader(layout) as reader, TaskThreads(1, "gramary-read") as thread:

        def read(index: int) -> torch.Tensor:
            start = starts[index]
            rows = buffers[index % 2][: min(chunk_rows, end_row - start)]
            reader.read(start, rows)
            # A change is found before rows of it are written, also in what was read before.
            reader.check_unchanged()
            return rows

        pending = [thread.submit(read, 0)] if starts else []
        for index, start in enumerate(starts):
            rows = pending.pop().result()
            if index + 1 < len(starts):
                pending.append(thread.submit(read, index + 1))
            yield start, rows


def _is_mostly_cached(descriptor: int, offset: int, num_bytes: int) -> bool:
    if not tells_residency(descriptor):
        return False
    resident = resident_pages(Span(descriptor, offset, offset + num_bytes))
    return bool(resident.size) and bool(resident.mean() > 0.5)
