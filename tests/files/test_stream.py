"""Reading rows from files in order."""

import dataclasses
import errno
import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from abilities import ask_for
from hypothesis import given, settings
from hypothesis import strategies as st

from gramary.errors import ArgumentError, RowReadError
from gramary.files import stream as row_stream
from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun
from gramary.files.page_cache import PAGE_BYTES, Span, resident_pages
from gramary.files.stream import RowReader, read_in_order, read_rows, stream_rows


def place(data: bytearray, part: RowPart, rows: torch.Tensor) -> None:
    """Writes the part of each row to where the layout says, row by row."""
    end = part.end_of(len(rows))
    data.extend(b"\xee" * (end - len(data)))
    for i, row in enumerate(rows):
        start = part.byte_of(i)
        columns = row[part.column : part.column + part.width]
        data[start : start + part.width] = columns.numpy().tobytes()


def make_layout(folder, runs, row_bytes, seed=0):
    """Writes random rows by a list of (num_rows, parts) and returns the layout and the rows."""
    generator = torch.Generator().manual_seed(seed)
    num_rows = sum(count for count, _ in runs)
    rows = torch.randint(0, 256, (num_rows, row_bytes), dtype=torch.uint8, generator=generator)
    files: dict[int, bytearray] = {}
    described, first = [], 0
    for count, parts in runs:
        for part in parts:
            place(files.setdefault(part.file, bytearray()), part, rows[first : first + count])
        described.append(RowRun(first, count, tuple(parts)))
        first += count
    paths = [folder / f"rows{index}" for index in range(len(files))]
    for index, path in enumerate(paths):
        path.write_bytes(files[index])
    layout = RowLayout(tuple(map(RowFile.from_path, paths)), row_bytes, tuple(described))
    return layout, rows


def plain(file, offset, num_rows, width, column=0):
    """A part whose rows lie one after the other."""
    return RowPart(file, offset, width, column, num_rows, num_rows * width, width)


WHOLE = [(5, [plain(1, 3, 5, 10)]), (4, [plain(0, 0, 4, 10)]), (1, [plain(1, 60, 1, 10)])]
SPLIT = [
    (7, [plain(0, 11, 7, 8), plain(1, 0, 7, 2, column=8)]),
    (3, [plain(1, 100, 3, 8), plain(0, 90, 3, 2, column=8)]),
]
BLOCKS = [(23, [RowPart(0, 64, 10, 0, rows_per_block=6, block_bytes=64, stride=10)])]
GAPS = [(9, [RowPart(0, 5, 10, 0, rows_per_block=9, block_bytes=999, stride=13)])]


@pytest.mark.parametrize("span_bytes", [1, 25, 100, 4 << 20])
@pytest.mark.parametrize(
    "runs", [WHOLE, SPLIT, BLOCKS, GAPS], ids=["whole", "split", "blocks", "gaps"]
)
def test_every_range_of_rows_is_read_right(tmp_path, monkeypatch, runs, span_bytes):
    monkeypatch.setattr(row_stream, "SPAN_BYTES", span_bytes)
    layout, rows = make_layout(tmp_path, runs, 10)
    for first in range(layout.num_rows + 1):
        for end in range(first, layout.num_rows + 1):
            out = torch.full((end - first, 10), 0xAB, dtype=torch.uint8)
            read_rows(layout, first, end - first, out)
            assert torch.equal(out, rows[first:end]), (first, end)


@pytest.mark.parametrize("chunk_bytes", [1, 10, 35, 1000])
@pytest.mark.parametrize(
    "runs", [WHOLE, SPLIT, BLOCKS, GAPS], ids=["whole", "split", "blocks", "gaps"]
)
def test_chunks_follow_each_other_in_one_bounded_buffer(tmp_path, runs, chunk_bytes):
    layout, rows = make_layout(tmp_path, runs, 10)
    next_row, addresses = 2, set()
    for first, chunk in stream_rows(layout, 2, layout.num_rows, chunk_bytes=chunk_bytes):
        assert first == next_row
        assert 1 <= len(chunk) <= max(1, chunk_bytes // 10)
        assert torch.equal(chunk, rows[first : first + len(chunk)])
        addresses.add(chunk.data_ptr())
        next_row += len(chunk)
    assert next_row == layout.num_rows
    assert len(addresses) == 1
    assert list(stream_rows(layout, 3, 3)) == []


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_random_blocks_and_parts(tmp_path_factory, data):
    columns = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    offsets = [0, 0]
    runs = []
    for num_rows in data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=3)):
        parts, column = [], 0
        for width in columns:
            per_block = data.draw(st.integers(1, num_rows))
            stride = width + data.draw(st.integers(0, 3))
            block_bytes = (per_block - 1) * stride + width + data.draw(st.integers(0, 9))
            file = data.draw(st.integers(0, 1))
            part = RowPart(file, offsets[file], width, column, per_block, block_bytes, stride)
            offsets[file] = part.end_of(num_rows)
            column += width
            parts.append(part)
        runs.append((num_rows, parts))
    used = sorted({part.file for _, parts in runs for part in parts})
    runs = [
        (n, [dataclasses.replace(p, file=used.index(p.file)) for p in parts]) for n, parts in runs
    ]
    layout, rows = make_layout(tmp_path_factory.mktemp("rows"), runs, sum(columns))
    first = data.draw(st.integers(0, layout.num_rows))
    end = data.draw(st.integers(first, layout.num_rows))
    out = torch.full((end - first, layout.row_bytes), 0xAB, dtype=torch.uint8)
    read_rows(layout, first, end - first, out)
    assert torch.equal(out, rows[first:end])


def test_each_file_is_opened_once_and_closed(tmp_path):
    layout, _ = make_layout(tmp_path, SPLIT, 10)
    before = os.listdir("/proc/self/fd")
    with RowReader(layout) as reader:
        out = torch.empty(1, 10, dtype=torch.uint8)
        for row in range(layout.num_rows):
            reader.read(row, out)
        assert len(os.listdir("/proc/self/fd")) == len(before) + 2
    stream = stream_rows(layout, 0, layout.num_rows, chunk_bytes=20)
    next(stream)
    stream.close()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("first", "num", "named"), [(-1, 2, "rows"), (9, 2, "rows"), (11, 0, "rows"), (0, 3, "out")]
)
def test_rows_outside_the_table_are_refused(tmp_path, first, num, named):
    layout, _ = make_layout(tmp_path, WHOLE, 10)
    out = torch.empty(2 if named == "out" else num, 10, dtype=torch.uint8)
    with pytest.raises(ArgumentError, match=named):
        read_rows(layout, first, num, out)
    if named == "rows":
        with pytest.raises(ArgumentError, match="rows"):
            stream_rows(layout, first, first + num)


@pytest.mark.parametrize(
    "out",
    [
        torch.empty(2, 9, dtype=torch.uint8),
        torch.empty(2, 10, dtype=torch.int8),
        torch.empty(10, 2, dtype=torch.uint8).T,
        torch.empty(2, 10, dtype=torch.uint8, device="meta"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(tmp_path, out):
    layout, _ = make_layout(tmp_path, WHOLE, 10)
    with pytest.raises(ArgumentError, match=r"out: expected contiguous uint8 \[n, 10\]"):
        read_rows(layout, 0, 2, out)


@pytest.mark.behaviour(32)
def test_a_file_that_shrinks_while_it_is_read_names_the_place(tmp_path):
    """Behaviour 32: a short read is an error with file, offset and errno."""
    layout, _ = make_layout(tmp_path, [(100, [plain(0, 0, 100, 10)])], 10)
    out = torch.empty(100, 10, dtype=torch.uint8)
    with RowReader(layout) as reader:
        reader.read(0, out[:1])
        os.truncate(layout.files[0].path, 505)
        with pytest.raises(RowReadError, match="short read") as caught:
            reader.read(0, out)
        assert caught.value.file == layout.files[0].path
        assert caught.value.offset == 505
        assert caught.value.errno == 0
        # What is still there may be that of another table.
        with pytest.raises(RowReadError, match="changed since") as caught:
            reader.read(0, out[:50])
        assert caught.value.errno == errno.ESTALE


@pytest.mark.behaviour(32)
def test_a_missing_or_exchanged_file_names_itself(tmp_path):
    """Behaviour 32: an error names file and errno, and nothing is read from a foreign file."""
    layout, _ = make_layout(tmp_path, WHOLE, 10)
    out = torch.empty(1, 10, dtype=torch.uint8)
    path = layout.files[0].path
    content = Path(path).read_bytes()
    os.unlink(path)
    with pytest.raises(RowReadError, match="No such file") as caught:
        read_rows(layout, 6, 1, out)
    assert (caught.value.file, caught.value.errno) == (path, errno.ENOENT)
    with open(path, "wb") as opened:
        opened.write(content)
    with pytest.raises(RowReadError, match="changed since") as caught:
        read_rows(layout, 6, 1, out)
    assert caught.value.errno == errno.ESTALE
    read_rows(layout, 0, 1, out)


def test_an_io_error_is_reported_with_its_number(tmp_path, monkeypatch):
    layout, _ = make_layout(tmp_path, WHOLE, 10)

    def fail(*_arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(RowReadError) as caught:
        read_rows(layout, 1, 1, torch.empty(1, 10, dtype=torch.uint8))
    assert caught.value.errno == errno.EIO
    assert caught.value.offset == 13


@pytest.fixture
def large_layout(tmp_path):
    """A layout of 24 MiB in two parts of one file, written to disk and out of the page cache."""
    ask_for("droppable_cache")
    num_rows = 120_000
    runs = [
        (
            num_rows,
            [plain(0, 1000, num_rows, 180), plain(0, 1000 + 180 * num_rows, num_rows, 20, 180)],
        )
    ]
    path = tmp_path / "large"
    size = 1000 + 200 * num_rows + 777
    path.write_bytes(np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes())
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    assert not resident_pages(Span(descriptor, 0, size)).any()
    parts = tuple(RowRun(0, n, tuple(p)) for n, p in runs)
    yield RowLayout((RowFile.from_path(path),), 200, parts), descriptor
    os.close(descriptor)


@pytest.mark.behaviour(5)
@pytest.mark.parametrize("chunk_bytes", [500_000, 3_000_000, 32 << 20])
def test_reading_lets_go_of_its_own_pages_and_of_no_others(large_layout, chunk_bytes):
    """Behaviour 5: pages that serve stay, pages that streaming brought in go."""
    layout, descriptor = large_layout
    size = layout.files[0].size
    served = [(5 << 20, 2 << 20), (12 << 20, 4096), (22 << 20, 100_000)]
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for offset, length in served:
        os.pread(descriptor, length, offset)
    before = resident_pages(Span(descriptor, 0, size))
    assert PAGE_BYTES * before.sum() >= sum(length for _, length in served)
    most = before.sum()
    for _ in stream_rows(layout, 0, layout.num_rows, chunk_bytes=chunk_bytes):
        most = max(most, resident_pages(Span(descriptor, 0, size)).sum())
    after = resident_pages(Span(descriptor, 0, size))
    assert after[before].all()
    assert not (after & ~before).any()
    # Two chunks are in flight, and up to one unit of the cache at either end of each part.
    assert PAGE_BYTES * (most - before.sum()) <= 2 * min(chunk_bytes, size) + (16 << 20)


@pytest.mark.behaviour(4)
def test_streaming_needs_no_memory_but_its_chunk(large_layout):
    """Behaviour 4: loading streams; its own memory is one chunk, whatever the table's size."""
    layout, _ = large_layout
    for _ in stream_rows(layout, 0, 1000, chunk_bytes=500_000):
        pass
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in stream_rows(layout, 0, layout.num_rows, chunk_bytes=500_000):
        pass
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < 8 << 20


@pytest.mark.parametrize("chunk_bytes", [1, 35, 1 << 20])
def test_rows_are_read_straight_into_their_place(tmp_path, chunk_bytes):
    layout, rows = make_layout(tmp_path, SPLIT, 10)
    out = torch.full((layout.num_rows - 2, 10), 255, dtype=torch.uint8)
    chunks = list(read_in_order(layout, 2, out, chunk_bytes=chunk_bytes))
    assert torch.equal(out, rows[2:])
    assert sum(chunks) == out.numel()
    assert max(chunks) <= max(10, chunk_bytes)
    assert list(read_in_order(layout, 3, out[:0])) == []
    with pytest.raises(ArgumentError, match="rows"):
        list(read_in_order(layout, 3, out))


@pytest.mark.parametrize("num_rows", [1, 7, 8, 9, 100])
def test_long_reads_are_cut_between_threads(tmp_path, monkeypatch, num_rows):
    """Every byte comes once, and an error leaves no thread behind that still writes."""
    monkeypatch.setattr(row_stream, "SPAN_BYTES", 40)
    layout, rows = make_layout(tmp_path, [(100, [plain(0, 3, 100, 10)])], 10)
    out = torch.zeros(num_rows, 10, dtype=torch.uint8)
    with RowReader(layout) as reader:
        reader.read(0, out)
        assert torch.equal(out, rows[:num_rows])
        os.truncate(layout.files[0].path, layout.files[0].size - 35)
        with pytest.raises(RowReadError, match="at byte"):
            reader.read(0, torch.zeros(100, 10, dtype=torch.uint8))
    assert not [t for t in threading.enumerate() if t.name.startswith("gramary-read")]
