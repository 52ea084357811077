"""Reading rows from files in order: for loading, packing and checking.

Positioned reads into a bounded buffer, or into the memory that is to hold the rows. Whoever reads
many rows is a guest in the page cache: chunks are read ahead by one, and every page that this
brought in is let go of, but none that was there before, so that loading one table does not slow
down what another process serves from disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import wait

import torch

from gramary.errors import ArgumentError, ChecksumError, RowReadError
from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun
from gramary.files.page_cache import PageCacheGuest, Span
from gramary.files.task_threads import TaskThreads
from gramary.lifetime import Closing
from gramary.model.codecs import describe
from gramary.native.blocks import BlockShape, find_bad_block
from gramary.native.descriptors import Descriptor, open_file

# Bytes read at once where rows have to be put together from parts or blocks, and by one thread
# where several read.
SPAN_BYTES = 4 << 20
# More threads than that bring nothing: they copy from the page cache as fast as memory is.
MAX_THREADS = 4


def read_rows(layout: RowLayout, first_row: int, num_rows: int, out: torch.Tensor) -> None:
    """Reads the rows `first_row` .. `first_row + num_rows - 1` into `out`.

    Args:
        layout: where the rows lie.
        first_row: first row to read.
        num_rows: rows to read.
        out: uint8 [num_rows, row_bytes], contiguous, on the CPU.

    Raises:
        ArgumentError: the rows are not all in the table, or `out` does not fit.
        RowReadError: a file cannot be read, is too short, or is not the one that was described.
        ChecksumError: a block of a pack was altered.
    """
    if type(num_rows) is not int or out.dim() != 2 or out.shape[0] != num_rows:
        raise ArgumentError(f"out: expected {num_rows!r} rows, got {describe(out)}")
    with RowReader(layout) as reader:
        reader.read(first_row, out)


def stream_rows(
    layout: RowLayout, first_row: int, end_row: int, *, chunk_bytes: int = 32 << 20
) -> Generator[tuple[int, torch.Tensor], None, None]:
    """Yields the rows `first_row` .. `end_row - 1` in order, in chunks of bounded memory.

    Close it where it may not run to its end: it has threads.

    Args:
        layout: where the rows lie.
        first_row: first row.
        end_row: one past the last row.
        chunk_bytes: most bytes in a chunk; a chunk has at least one row.

    Yields:
        (first row, rows uint8 [n, row_bytes]) of each chunk. The tensor is one buffer that the
        next chunk overwrites.

    Raises:
        ArgumentError: the rows are not all in the table.
        RowReadError: as `read_rows`.
    """
    if chunk_bytes < 1:
        raise ArgumentError(f"chunk_bytes: expected at least 1, got {chunk_bytes}")
    check_row_range(layout, first_row, end_row - first_row)
    chunk_rows = max(1, chunk_bytes // layout.row_bytes)
    buffer = torch.empty(
        min(chunk_rows, end_row - first_row), layout.row_bytes, dtype=torch.uint8, device="cpu"
    )
    return _stream(layout, first_row, end_row, chunk_rows, lambda _row, count: buffer[:count])


def read_in_order(
    layout: RowLayout, first_row: int, out: torch.Tensor, *, chunk_bytes: int = 32 << 20
) -> Iterator[int]:
    """Reads rows straight into their place, chunk by chunk, as the caller asks for the next.

    Args:
        layout: where the rows lie.
        first_row: first row.
        out: uint8 [n, row_bytes], contiguous, on the CPU: where the n rows from there on go.
        chunk_bytes: bytes of a chunk, which is read ahead; a chunk has at least one row.

    Yields:
        The bytes of each chunk, once it was read.

    Raises:
        ArgumentError: the rows are not all in the table, or `out` does not fit.
        RowReadError, ChecksumError: as `read_rows`.
    """
    end_row = first_row + out.shape[0]
    check_row_range(layout, first_row, out.shape[0])
    chunk_rows = max(1, chunk_bytes // layout.row_bytes)

    def room(row: int, count: int) -> torch.Tensor:
        return out[row - first_row : row - first_row + count]

    for _, rows in _stream(layout, first_row, end_row, chunk_rows, room):
        yield rows.numel()


def _stream(
    layout: RowLayout,
    first_row: int,
    end_row: int,
    chunk_rows: int,
    room: Callable[[int, int], torch.Tensor],
) -> Generator[tuple[int, torch.Tensor], None, None]:
    """Reads chunks into the room for (row, count); yields each with its first row."""
    with RowReader(layout) as reader, PageCacheGuest() as guest:
        guest.announce(reader.spans(first_row, min(first_row + chunk_rows, end_row)))
        for row in range(first_row, end_row, chunk_rows):
            end = min(row + chunk_rows, end_row)
            guest.announce(reader.spans(end, min(end + chunk_rows, end_row)))
            rows = room(row, end - row)
            reader.read(row, rows)
            reader.check_unchanged()
            guest.let_go()
            yield row, rows


def check_row_range(layout: RowLayout, first_row: int, num_rows: int) -> None:
    """Raises ArgumentError unless all of `num_rows` rows from `first_row` on are in the table."""
    if first_row < 0 or num_rows < 0 or first_row + num_rows > layout.num_rows:
        raise ArgumentError(
            f"rows: expected rows within 0 to {layout.num_rows}, got rows {first_row} to "
            f"{first_row + num_rows}"
        )


class RowReader(Closing):
    """Reads rows of one layout; a context manager that opens each file once, when it is needed.

    Rows are given out only where their files are, once they were read, still those that were
    described: a write moves a file's change time before it changes a byte. Blocks with checksums
    are either right or refused by themselves. Not thread-safe.
    """

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._descriptors: dict[int, Descriptor] = {}
        self._threads: TaskThreads | None = None

    def read(self, first_row: int, out: torch.Tensor) -> None:
        """Reads as many rows as `out` has, from `first_row` on.

        Args:
            first_row: first row to read.
            out: uint8 [n, row_bytes], contiguous, on the CPU.

        Raises:
            ArgumentError: the rows are not all in the table, or `out` does not fit.
            RowReadError: a file cannot be read, is too short, or is not the one described (ESTALE
                where it was written to or replaced since); `out` is undefined then.
            ChecksumError: a block of a pack was altered.
        """
        row_bytes = self._layout.row_bytes
        is_fitting = out.dtype == torch.uint8 and out.dim() == 2 and out.shape[1] == row_bytes
        if not is_fitting or not out.is_contiguous() or out.device.type != "cpu":
            raise ArgumentError(
                f"out: expected contiguous uint8 [n, {row_bytes}] on the CPU, got {describe(out)} "
                f"on {out.device}"
            )
        check_row_range(self._layout, first_row, out.shape[0])
        touched: set[int] = set()
        for run, begin, end in self._pieces(first_row, first_row + out.shape[0]):
            rows = out[run.first_row + begin - first_row : run.first_row + end - first_row]
            for part in run.parts:
                self._read_part(part, begin, end, rows)
                touched.add(part.file)
        self._check(touched)

    def spans(self, first_row: int, end_row: int) -> Iterator[Span]:
        """Yields the bytes that reading rows touches, in the order they are read."""
        for run, begin, end in self._pieces(first_row, end_row):
            for part in run.parts:
                last = part.byte_of(end - 1) + part.width
                yield Span(self._open(part.file), part.byte_of(begin), last)

    def check_unchanged(self) -> None:
        """Raises RowReadError (ESTALE) where any file read from until now was changed since."""
        self._check(self._descriptors)

    def close(self) -> None:
        """Ends the threads and closes the files."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        while self._descriptors:
            self._descriptors.popitem()[1].close()

    def _pieces(self, first_row: int, end_row: int) -> Iterator[tuple[RowRun, int, int]]:
        """Yields each run that holds some of the rows, and which of its rows, from 0."""
        for run in self._layout.runs_between(first_row, end_row):
            begin = max(first_row, run.first_row) - run.first_row
            yield run, begin, min(end_row, run.end_row) - run.first_row

    def _read_part(self, part: RowPart, begin: int, end: int, rows: torch.Tensor) -> None:
        """Reads one part of the run's rows `begin` .. `end`-1 into its columns of `rows`."""
        is_dense = part.width == self._layout.row_bytes == part.stride
        is_dense = is_dense and not self._layout.block_checksums
        if is_dense and (begin // part.rows_per_block == (end - 1) // part.rows_per_block):
            self._read_bytes(part.file, part.byte_of(begin), rows)
            return
        for first, last in _split_by_span(part, begin, end):
            if self._layout.block_checksums:
                span = self._read_blocks(part, first, last)
            else:
                base = part.byte_of(first)
                span = torch.empty(
                    part.byte_of(last - 1) + part.width - base, dtype=torch.uint8, device="cpu"
                )
                self._read_bytes(part.file, base, span)
            _scatter_span(part, span, first, last, rows[first - begin : last - begin])

    def _read_blocks(self, part: RowPart, first: int, last: int) -> torch.Tensor:
        """Reads and checks the blocks of rows `first` .. `last`-1; returns bytes from `first` on.

        Raises:
            ChecksumError: a block was altered.
        """
        block_bytes = part.block_bytes
        first_block = first // part.rows_per_block
        num_blocks = (last - 1) // part.rows_per_block + 1 - first_block
        base = part.offset + first_block * block_bytes
        blocks = torch.empty(num_blocks * block_bytes, dtype=torch.uint8, device="cpu")
        self._read_bytes(part.file, base, blocks)
        shape = BlockShape(
            part.stride, part.rows_per_block, block_bytes, self._layout.checksum_seed
        )
        bad = find_bad_block(shape, blocks, base // block_bytes)
        if bad is not None:
            raise ChecksumError(
                f"{self._layout.files[part.file].path}: the block at byte "
                f"{base + bad * block_bytes} was altered; run `gramary verify` and rebuild it"
            )
        return blocks[part.byte_of(first) - base :]

    def _read_bytes(self, file: int, offset: int, out: torch.Tensor) -> None:
        """Fills a contiguous tensor with the bytes from `offset` on; a long one in pieces, by
        several threads."""
        self._open(file)
        room = out.view(-1).numpy().data
        if len(room) < 2 * SPAN_BYTES:
            self._read_piece(file, offset, room)
            return
        if self._threads is None:
            num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
            self._threads = TaskThreads(num_threads, "gramary-read")
        pieces = range(0, len(room), SPAN_BYTES)
        reads = [
            self._threads.submit(
                self._read_piece, file, offset + first, room[first : first + SPAN_BYTES]
            )
            for first in pieces
        ]
        # All have ended before an error leaves: none writes into memory that is given back.
        wait(reads)
        for read in reads:
            read.result()

    def _read_piece(self, file: int, offset: int, room: memoryview) -> None:
        descriptor = self._descriptors[file].fileno()
        while room:
            try:
                num_bytes = os.preadv(descriptor, [room], offset)
            except OSError as error:
                raise self._error(file, offset, error.errno or errno.EIO) from error
            if num_bytes == 0:
                raise self._error(file, offset, 0)
            room = room[num_bytes:]
            offset += num_bytes

    def _open(self, file: int) -> int:
        """Returns the descriptor of a file, opened and compared with its description."""
        if file not in self._descriptors:
            described = self._layout.files[file]
            try:
                # O_NONBLOCK: a named pipe that took the name is refused, not waited for.
                self._descriptors[file] = open_file(described.path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError as error:
                raise self._error(file, 0, error.errno or errno.EIO) from error
            self._check_described(file)
        return self._descriptors[file].fileno()

    def _check(self, files: Iterable[int]) -> None:
        for file in () if self._layout.block_checksums else files:
            self._check_described(file)
            self._check_name(file)

    def _check_described(self, file: int) -> None:
        """Raises RowReadError (ESTALE) where the open file is not as it was described."""
        described = self._layout.files[file]
        found = RowFile.from_stat(described.path, os.fstat(self._descriptors[file].fileno()))
        if found != described:
            raise self._changed(file)

    def _check_name(self, file: int) -> None:
        """Raises RowReadError (ESTALE) where another file has the name now.

        A link that was pointed elsewhere moves no time of the file that it led to.
        """
        described = self._layout.files[file]
        try:
            named = os.stat(described.path)
        except OSError:
            # Nothing else can be read under this name.
            return
        if (named.st_dev, named.st_ino) != described.identity[:2]:
            raise self._changed(file)

    def _changed(self, file: int) -> RowReadError:
        return RowReadError(
            "the file changed since the table was found in it; open the table again",
            file=self._layout.files[file].path,
            offset=0,
            errno=errno.ESTALE,
        )

    def _error(self, file: int, offset: int, code: int) -> RowReadError:
        path = self._layout.files[file].path
        return RowReadError("reading rows failed", file=path, offset=offset, errno=code)


def _split_by_span(part: RowPart, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields (first, last + 1) of rows that are read at once, cut between blocks if possible."""
    while begin < end:
        last = min(end, begin + max(1, SPAN_BYTES // part.stride))
        block_start = last // part.rows_per_block * part.rows_per_block
        if last < end and block_start > begin:
            last = block_start
        yield begin, last
        begin = last


def _scatter_span(
    part: RowPart, span: torch.Tensor, begin: int, end: int, rows: torch.Tensor
) -> None:
    """Copies the part of rows `begin` .. `end`-1 from the bytes of `span` into their columns."""
    per_block = part.rows_per_block
    head = min(end, -(-begin // per_block) * per_block)
    body = max(head, end // per_block * per_block)
    # The rows of a broken block, then whole blocks in one copy, then those of a broken block.
    for first, last, per_copy in ((begin, head, 0), (head, body, per_block), (body, end, 0)):
        if first == last:
            continue
        group = per_copy or last - first
        shape = ((last - first) // group, group, part.width)
        strides = (part.block_bytes, part.stride, 1)
        # as_strided counts from the start of the storage, not of the tensor.
        offset = span.storage_offset() + part.byte_of(first) - part.byte_of(begin)
        source = span.as_strided(shape, strides, offset)
        target = rows[first - begin : last - begin].view(shape[0], group, -1)
        target[..., part.column : part.column + part.width] = source
