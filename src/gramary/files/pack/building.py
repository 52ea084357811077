"""Building a pack: reserve, stream the rows through, publish; or take up what a killed run left."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Literal

import torch
import xxhash

from gramary.errors import HashMismatchError, PackError, RowReadError
from gramary.files.layout import TableSource
from gramary.files.pack.block_reading import read_blocks
from gramary.files.pack.header import PackHeader, SourceIdentity
from gramary.files.pack.opening import open_file, read_header
from gramary.files.pack.partial_file import PartialFile
from gramary.files.pack.recoding import (
    Progress,
    Recoder,
    RecodingError,
    choose_chunk_rows,
    choose_codec,
)
from gramary.files.pack.source_rows import stream_source
from gramary.files.pack.verifying import verify_pack
from gramary.files.task_threads import TaskThreads
from gramary.model.codecs import Codec
from gramary.native.blocks import find_bad_block, pack_blocks
from gramary.process.descriptor_limit import naming_shortage

WRITER = "gramary pack writer 2"


@dataclasses.dataclass(frozen=True)
class PackReport:
    """What `build_pack` did.

    Attributes:
        path: the pack.
        outcome: "built", "resumed" after a run that was killed, or "reused" without a write.
        header: what the pack holds.
        num_rows_written: rows written by this run.
        error: what re-coding cost over those rows; None where rows were kept as they are.
    """

    path: str
    outcome: Literal["built", "resumed", "reused"]
    header: PackHeader
    num_rows_written: int
    error: RecodingError | None


@naming_shortage("build a pack")
def build_pack(
    source: TableSource,
    out_path: str | os.PathLike[str],
    *,
    codec: str = "keep",
    progress: Progress | None = None,
) -> PackReport:
    """Writes the pack of a table, or reuses the one that is there.

    Memory stays below two shards of the source; the rows stream through two buffers.

    Args:
        source: the table, from `open_source`.
        out_path: name of the pack; its folder must exist.
        codec: "keep", "bf16", "fp8" or "nvfp4"; other codecs than the source's are rounded to
            nearest even.
        progress: called with (done_bytes, total_bytes) of source rows; from 0 again after the
            first pass that fp8 and nvfp4 need. Where a killed run is taken up, what it left is
            checked first. A pack that is there is compared with the source, row by row, where it
            was not built from the source's files as they are now.

    Returns:
        What was done.

    Raises:
        PackError: another table's pack, one of rows that were changed since, or another file has
            the name, another process is building it, there is no room (with the numbers), or the
            file cannot be written; what was written stays for the next run to take up.
        ArgumentError: the codec is unknown or cannot hold the rows.
        RowReadError: the source cannot be read, or was written to or replaced meanwhile (ESTALE):
            no pack is made, and nothing is left to take up.
    """
    path = os.path.abspath(os.fspath(out_path))
    if os.path.lexists(path):
        return _reuse(source, path, codec, progress)
    with PartialFile(path) as file:
        # Another builder may have finished while this one waited to open the file.
        if os.path.lexists(path):
            file.remove()
            return _reuse(source, path, codec, progress)
        left = _find_left(file, source, codec)
        header = left or _describe(source, choose_codec(source, codec, progress))
        first_row = _count_good_rows(file, header, source, progress) if left else 0
        if not left:
            file.reserve(header.geometry.file_bytes)
            _write_header(file, header)
        # For people and their tools: what changes from now on is newer than the pack will be.
        begun_ns = os.fstat(file.descriptor).st_mtime_ns
        recoder = Recoder(source.codec, header.codec)
        try:
            _write_rows(file, header, source, recoder, first_row, progress)
        except RowReadError as error:
            if error.errno == errno.ESTALE:
                # Some rows are of the old source.
                file.remove()
            raise
        file.publish(header.to_bytes(), begun_ns)
    outcome: Literal["built", "resumed"] = "resumed" if left else "built"
    return PackReport(path, outcome, header, source.layout.num_rows - first_row, recoder.error)


def _describe(source: TableSource, codec: Codec) -> PackHeader:
    identity = SourceIdentity(source.model_id, source.codec.name, source.codec.scale)
    return PackHeader(source.spec, codec, identity, f"{WRITER}, source state {_state_of(source)}")


def _state_of(source: TableSource) -> str:
    """Returns 32 digits for the state in which the source's files were found.

    The identity looks at some rows only. As part of the metadata, which seeds the checksums, the
    state keeps rows of another one out: blocks that were made from it are not right in this pack.
    """
    files = [(file.identity[1], *file.version) for file in source.layout.files]
    return xxhash.xxh3_128_hexdigest(json.dumps(files).encode())


def _is_of(header: PackHeader, source: TableSource, codec: str) -> bool:
    """Whether a pack is one of `source` in this codec, in whatever state its files were."""
    name = source.codec.name if codec == "keep" else codec
    expected = _describe(source, header.codec)
    return header.codec.name == name and (header.spec, header.source) == (
        expected.spec,
        expected.source,
    )


def _reuse(source: TableSource, path: str, codec: str, progress: Progress | None) -> PackReport:
    """Returns the report of a pack that is there, once it is sure to hold the source's rows."""
    with open_file(path) as descriptor:
        header = read_header(descriptor, path)
    if not _is_of(header, source, codec):
        raise PackError(
            f"{path}: a pack of another table or codec has this name: expected {codec} of model "
            f"{source.model_id}, got {header.codec.name} of model {header.source.model_id}; remove "
            f"it, or choose another name"
        )
    if header != _describe(source, header.codec):
        # Files that were copied or touched, or rows changed that the identity does not look at?
        verify_pack(path, against=source, progress=progress)
    return PackReport(path, "reused", header, 0, None)


def _find_left(file: PartialFile, source: TableSource, codec: str) -> PackHeader | None:
    """Returns the header of a killed run of the same build, from the same files, or None."""
    for partial in (True, False):
        try:
            header = read_header(file.descriptor, file.path, partial=partial)
        except (PackError, HashMismatchError):
            continue
        is_same = _is_of(header, source, codec) and header == _describe(source, header.codec)
        return header if is_same else None
    return None


def _count_good_rows(
    file: PartialFile, header: PackHeader, source: TableSource, progress: Progress | None
) -> int:
    """Returns how many rows, from the first on, are in blocks whose checksums are right."""
    geometry, shape, row_bytes = header.geometry, header.block_shape, source.layout.row_bytes
    chunk_bytes = choose_chunk_rows(source, header.codec) * header.codec.row_bytes
    for block, blocks in read_blocks(file.descriptor, file.path, geometry, chunk_bytes):
        bad = find_bad_block(shape, blocks, geometry.first_block + block)
        if bad is not None:
            return (block + bad) * geometry.rows_per_block
        if progress is not None:
            num_blocks = block + blocks.numel() // geometry.block_bytes
            num_rows = min(num_blocks * geometry.rows_per_block, geometry.num_rows)
            progress(num_rows * row_bytes, source.layout.nbytes)
    return geometry.num_rows


def _write_header(file: PartialFile, header: PackHeader) -> None:
    data = header.to_bytes(partial=True)
    buffer = mmap.mmap(-1, len(data))
    buffer[:] = data
    file.write(0, memoryview(buffer))


def _write_rows(
    file: PartialFile,
    header: PackHeader,
    source: TableSource,
    recoder: Recoder,
    first_row: int,
    progress: Progress | None,
) -> None:
    """Streams rows from `first_row` on into blocks; writing overlaps reading the next chunk."""
    geometry, shape = header.geometry, header.block_shape
    chunk_rows = choose_chunk_rows(source, recoder.target, geometry.rows_per_block)
    chunk_bytes = shape.num_blocks(chunk_rows) * geometry.block_bytes
    buffers = _alternate([mmap.mmap(-1, chunk_bytes), mmap.mmap(-1, chunk_bytes)])
    layout = source.layout
    chunks = stream_source(layout, first_row, layout.num_rows, chunk_rows)
    pending: Future[None] | None = None
    with contextlib.closing(chunks), TaskThreads(1, "gramary-pack") as thread:
        for row, rows in chunks:
            buffer = next(buffers)
            block = row // geometry.rows_per_block
            num_bytes = shape.num_blocks(len(rows)) * geometry.block_bytes
            blocks = torch.frombuffer(buffer, dtype=torch.uint8, count=num_bytes)
            pack_blocks(shape, recoder.recode(rows), geometry.first_block + block, blocks)
            if pending is not None:
                pending.result()
            offset = geometry.header_bytes + block * geometry.block_bytes
            pending = thread.submit(file.write, offset, memoryview(buffer)[:num_bytes])
            if progress is not None:
                progress((row + len(rows)) * layout.row_bytes, layout.nbytes)
        if pending is not None:
            pending.result()


def _alternate(buffers: list[mmap.mmap]) -> Iterator[mmap.mmap]:
    while True:
        yield from buffers
