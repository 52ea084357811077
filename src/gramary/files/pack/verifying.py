"""Checking every byte of a pack, by itself and against the table it was made from."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os

from gramary.errors import ArgumentError, ChecksumError, PackError, RowReadError
from gramary.files.layout import RowFile, TableSource
from gramary.files.pack.block_reading import read_blocks
from gramary.files.pack.header import PackHeader
from gramary.files.pack.opening import lay_out, open_file, read_header
from gramary.files.pack.recoding import (
    Progress,
    Recoder,
    RecodingError,
    choose_chunk_rows,
)
from gramary.files.stream import stream_rows
from gramary.native.blocks import find_bad_block
from gramary.process.descriptor_limit import naming_shortage

CHUNK_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """What `verify_pack` found to be right.

    Attributes:
        path: the pack.
        header: what it holds.
        num_blocks: blocks whose checksums were compared.
        error: what re-coding cost over all rows; None where the rows are the source's own, or
            there was no source to compare with.
    """

    path: str
    header: PackHeader
    num_blocks: int
    error: RecodingError | None


@naming_shortage("verify a pack")
def verify_pack(
    path: str | os.PathLike[str],
    *,
    against: TableSource | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Checks the header and every block of a pack, and its rows against a table.

    Args:
        path: the pack.
        against: the table it was made from; its rows are encoded again and compared.
        progress: called with (done_bytes, total_bytes) of the pack, then of the source.

    Raises:
        ChecksumError: a block was altered; the message names it and its rows.
        PackError: as `open_pack`, or a row differs from the source's; the message names the first.
        ArgumentError: `against` is another table than the pack was made from.
        RowReadError: the pack or the source cannot be read, or was changed meanwhile (ESTALE).
    """
    name = os.fspath(path)
    error = None
    with open_file(name) as descriptor:
        file = RowFile.from_stat(name, os.fstat(descriptor))
        header = read_header(descriptor, name)
        if against is not None:
            _check_same_table(header, name, against)
        _check_blocks(descriptor, name, header, progress)
        if against is not None:
            error = _compare_rows(header, file, against, progress)
        if RowFile.from_stat(name, os.fstat(descriptor)) != file:
            raise RowReadError(
                "the pack was changed while it was checked; check it again",
                file=name,
                offset=0,
                errno=errno.ESTALE,
            )
    return VerifyReport(name, header, header.geometry.num_blocks, error)


def _check_same_table(header: PackHeader, name: str, source: TableSource) -> None:
    pairs = (
        ("model", source.model_id, header.source.model_id),
        ("codec", source.codec.name, header.source.codec),
        ("scale", source.codec.scale, header.source.scale),
        ("hash specification", source.spec, header.spec),
    )
    for what, expected, found in pairs:
        if expected != found:
            raise ArgumentError(
                f"against: {source.path} is not the table that {name} was made from: its {what} is "
                f"{expected}, the pack's source had {found}"
            )


def _check_blocks(
    descriptor: int, name: str, header: PackHeader, progress: Progress | None
) -> None:
    geometry, shape = header.geometry, header.block_shape
    for block, blocks in read_blocks(descriptor, name, geometry, CHUNK_BYTES):
        bad = find_bad_block(shape, blocks, geometry.first_block + block)
        if bad is not None:
            first_row = (block + bad) * geometry.rows_per_block
            last_row = min(first_row + geometry.rows_per_block, geometry.num_rows) - 1
            raise ChecksumError(
                f"{name}: the block at byte {geometry.offset_of(block + bad)} (rows {first_row} to "
                f"{last_row}) was altered; build the pack again"
            )
        if progress is not None:
            progress(geometry.offset_of(block) + blocks.numel(), geometry.file_bytes)


def _compare_rows(
    header: PackHeader, file: RowFile, source: TableSource, progress: Progress | None
) -> RecodingError | None:
    recoder = Recoder(source.codec, header.codec)
    chunk_rows = choose_chunk_rows(source, header.codec)
    # Both are read as a guest of the page cache.
    chunks, packed = (
        stream_rows(layout, 0, layout.num_rows, chunk_bytes=chunk_rows * layout.row_bytes)
        for layout in (source.layout, lay_out(header, file))
    )
    with contextlib.closing(chunks), contextlib.closing(packed):
        for (row, rows), (_, found) in zip(chunks, packed, strict=True):
            differs = (recoder.recode(rows) != found).any(1)
            if bool(differs.any()):
                first = row + int(differs.nonzero()[0])
                raise PackError(
                    f"{file.path}: row {first} is not the one that {source.path} holds; remove "
                    f"the pack and build it again"
                )
            if progress is not None:
                progress((row + len(rows)) * source.layout.row_bytes, source.layout.nbytes)
    return recoder.error
