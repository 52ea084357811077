"""Opening a pack: from a path to the description of its table, every claim checked."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from gramary.errors import HashMismatchError, PackError
from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun, TableSource
from gramary.files.pack.geometry import FIXED_HEADER_BYTES
from gramary.files.pack.header import (
    MAGIC,
    PARTIAL_MAGIC,
    PackHeader,
    parse_header,
    read_header_bytes,
)
from gramary.model.foreign_files import HEAD_BYTES, recognise
from gramary.native import descriptors


def open_pack(path: str | os.PathLike[str]) -> TableSource:
    """Returns the table in a pack; only the header is read.

    Raises:
        PackError: the file cannot be read, is no pack, truncated, unfinished or of another
            version, or its header breaks a rule; ChecksumError where the header was altered.
        HashMismatchError: its hash constants differ from the rebuilt ones.
    """
    with open_file(path) as descriptor:
        facts = os.fstat(descriptor)
        header = read_header(descriptor, path)
    name = os.fspath(path)
    geometry = header.geometry
    return TableSource(
        path=name,
        kind="pack",
        spec=header.spec,
        codec=header.codec,
        layout=lay_out(header, RowFile.from_stat(os.path.realpath(name), facts)),
        model_id=header.model_id,
        details={
            "writer": header.writer,
            "source_codec": header.source.codec,
            "source_model_id": header.source.model_id,
            "block_bytes": geometry.block_bytes,
            "rows_per_block": geometry.rows_per_block,
        },
    )


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[int]:
    """Opens a file for reading as long as the context lasts, and gives its descriptor.

    Raises:
        PackError: it cannot be opened.
    """
    try:
        # O_NONBLOCK: a named pipe is refused, not waited for.
        opened = descriptors.open_file(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(path, error) from error
    with opened:
        yield opened.fileno()


def _unreadable(path: str | os.PathLike[str], error: OSError) -> PackError:
    return PackError(f"{os.fspath(path)}: cannot be read: {error.strerror} (errno {error.errno})")


def read_header(
    descriptor: int, path: str | os.PathLike[str], *, partial: bool = False
) -> PackHeader:
    """Returns the header of an open pack, compared with the file's size.

    Args:
        descriptor: readable descriptor of the file.
        path: its name, for messages.
        partial: whether a file that is being built is wanted.

    Raises:
        PackError: as `open_pack`; the message begins with the path.
    """
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise PackError(f"{os.fspath(path)}: expected a regular file; give the name of a pack")
    try:
        fixed = os.pread(descriptor, FIXED_HEADER_BYTES, 0)
        _require_pack(descriptor, fixed, facts.st_size)
        num_bytes = read_header_bytes(fixed, facts.st_size, partial=partial)
        header = parse_header(_read_fully(descriptor, num_bytes))
    except (PackError, HashMismatchError) as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from None
    except OSError as error:
        raise _unreadable(path, error) from error
    expected = header.geometry.file_bytes
    if facts.st_size != expected:
        problem = "is truncated" if facts.st_size < expected else "has bytes after its end"
        raise PackError(
            f"{os.fspath(path)}: the pack {problem}: expected {expected} bytes, got "
            f"{facts.st_size}; copy it again, or build it again"
        )
    return header


def _require_pack(descriptor: int, fixed: bytes, num_bytes: int) -> None:
    """Raises PackError where the file is known to be something else."""
    if fixed.startswith((MAGIC, PARTIAL_MAGIC)):
        return
    found = recognise(os.pread(descriptor, HEAD_BYTES, 0), num_bytes)
    if found is None and fixed[8:9] == b"{" and int.from_bytes(fixed[:8], "little") < 1 << 32:
        found = "a safetensors file; give the model's folder"
    if found is not None:
        raise PackError(f"it is no pack, but {found}")


def lay_out(header: PackHeader, file: RowFile) -> RowLayout:
    """Returns where the rows of a pack lie."""
    geometry = header.geometry
    part = RowPart(
        file=0,
        offset=geometry.header_bytes,
        width=geometry.row_bytes,
        column=0,
        rows_per_block=geometry.rows_per_block,
        block_bytes=geometry.block_bytes,
        stride=geometry.row_bytes,
    )
    return RowLayout(
        files=(file,),
        row_bytes=geometry.row_bytes,
        runs=(RowRun(0, geometry.num_rows, (part,)),),
        block_checksums=True,
        checksum_seed=header.block_shape.checksum_seed,
    )


def _read_fully(descriptor: int, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        piece = os.pread(descriptor, num_bytes - len(data), len(data))
        if not piece:
            raise PackError("it was truncated while it was read")
        data += piece
    return data
