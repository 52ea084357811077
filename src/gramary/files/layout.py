"""Where the rows of a table lie in files: the one description that checkpoints and packs share.

Nothing here opens a file; whatever reads rows (`row_stream`, the disk tier) follows a `RowLayout`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from gramary.errors import ArgumentError

if TYPE_CHECKING:
    from gramary.model.codecs import Codec
    from gramary.model.hashing import HashSpec


@dataclasses.dataclass(frozen=True)
class RowFile:
    """One file that holds rows, in the state in which it was found.

    A reader refuses a file that is in another state. Its bytes are as old as its change time, which
    every write moves and which cannot be put back; so does a change of its owner, mode or links.

    Attributes:
        path: path to open; symbolic links are followed.
        size: bytes of the file.
        identity: (device, inode, modification time in ns).
        changed_ns: change time (`st_ctime`) in ns.
    """

    path: str
    size: int
    identity: tuple[int, int, int]
    changed_ns: int = 0

    @property
    def version(self) -> tuple[int, int, int]:
        """Size, modification time and change time: others where the file was written to since."""
        return self.size, self.identity[2], self.changed_ns

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> RowFile:
        """Returns the description of an existing file; OSError as `os.stat` raises it."""
        return cls.from_stat(path, os.stat(path))

    @classmethod
    def from_stat(cls, path: str | os.PathLike[str], stat: os.stat_result) -> RowFile:
        """Returns the description of a file from its `os.stat` or `os.fstat`."""
        identity = (stat.st_dev, stat.st_ino, stat.st_mtime_ns)
        return cls(os.fspath(path), stat.st_size, identity, stat.st_ctime_ns)


@dataclasses.dataclass(frozen=True)
class RowPart:
    """Where one column range of a run's rows lies.

    Row i of the run (i from 0) has its part at byte
    `offset + (i // rows_per_block) * block_bytes + (i % rows_per_block) * stride`.

    Attributes:
        file: index into `RowLayout.files`.
        offset: byte of row 0's part in the file.
        width: bytes of the part.
        column: first byte of the part within the encoded row.
        rows_per_block: rows before the next block starts.
        block_bytes: bytes from one block to the next.
        stride: bytes from one row's part to the next within a block.
    """

    file: int
    offset: int
    width: int
    column: int
    rows_per_block: int
    block_bytes: int
    stride: int

    def byte_of(self, row: int) -> int:
        """Returns the byte in the file at which row `row` of the run has its part."""
        block, index = divmod(row, self.rows_per_block)
        return self.offset + block * self.block_bytes + index * self.stride

    def end_of(self, num_rows: int) -> int:
        """Returns one past the last byte that the first `num_rows` rows use (0 for no rows)."""
        return self.byte_of(num_rows - 1) + self.width if num_rows else 0


@dataclasses.dataclass(frozen=True)
class RowRun:
    """Rows `first_row` .. `end_row`-1 of the table and where the parts of each lie."""

    first_row: int
    num_rows: int
    parts: tuple[RowPart, ...]

    @property
    def end_row(self) -> int:
        """One past the run's last row."""
        return self.first_row + self.num_rows


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """Where every row of a table lies.

    Attributes:
        files: the files, each once.
        row_bytes: bytes of one encoded row.
        runs: ordered and disjoint; together they cover rows 0 .. num_rows-1.
        block_checksums: whether the blocks of the parts end in checksums (packs do).
        checksum_seed: what seeds those checksums, with the block's number added.

    Raises:
        ArgumentError: a run is out of turn, its parts do not cover a row's bytes exactly once, or
            a part reaches outside its file.
    """

    files: tuple[RowFile, ...]
    row_bytes: int
    runs: tuple[RowRun, ...]
    block_checksums: bool = False
    checksum_seed: int = 0

    def __post_init__(self) -> None:
        if self.row_bytes < 1:
            raise ArgumentError(f"row_bytes: expected at least 1, got {self.row_bytes}")
        next_row = 0
        for run in self.runs:
            if run.first_row != next_row or run.num_rows < 1:
                raise ArgumentError(
                    f"runs: expected a run of at least one row from row {next_row}, got "
                    f"{run.num_rows} rows from row {run.first_row}"
                )
            next_row = run.end_row
            self._check_columns(run)
            for part in run.parts:
                self._check_extent(run, part)

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return self.runs[-1].end_row if self.runs else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all encoded rows."""
        return self.num_rows * self.row_bytes

    def runs_between(self, first_row: int, end_row: int) -> tuple[RowRun, ...]:
        """Returns the runs that hold any of the rows `first_row` .. `end_row`-1."""
        return tuple(
            run for run in self.runs if max(first_row, run.first_row) < min(end_row, run.end_row)
        )

    def _check_columns(self, run: RowRun) -> None:
        column = 0
        for part in sorted(run.parts, key=lambda part: part.column):
            if part.column != column or part.width < 1:
                column = -1
                break
            column += part.width
        if column != self.row_bytes:
            raise ArgumentError(
                f"runs: the parts of the run at row {run.first_row} do not cover bytes 0 to "
                f"{self.row_bytes} of a row exactly once"
            )

    def _check_extent(self, run: RowRun, part: RowPart) -> None:
        if not 0 <= part.file < len(self.files):
            raise ArgumentError(f"runs: expected a file below {len(self.files)}, got {part.file}")
        file = self.files[part.file]
        is_apart = part.stride >= part.width and (
            part.block_bytes >= (part.rows_per_block - 1) * part.stride + part.width
        )
        end = part.end_of(run.num_rows) if part.rows_per_block >= 1 else 0
        if part.rows_per_block < 1 or not is_apart or part.offset < 0 or end > file.size:
            raise ArgumentError(
                f"runs: the run at row {run.first_row} reaches outside {file.path} of "
                f"{file.size} bytes, or its rows overlap: {part}"
            )


@dataclasses.dataclass(frozen=True)
class TableSource:
    """A table found in files, with everything needed to read it; no storage is allocated.

    Attributes:
        path: the folder or file it was found in.
        kind: "checkpoint" or "pack".
        spec: geometry and hash constants.
        codec: how its rows are encoded, with the scale.
        layout: where its rows lie.
        model_id: identity of the table's content, the same for equal files under other paths.
        details: facts for people (shard names, where the scale is, ...), by name.
    """

    path: str
    kind: Literal["checkpoint", "pack"]
    spec: HashSpec
    codec: Codec
    layout: RowLayout
    model_id: str
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
