"""Re-coding rows on their way into a pack: the scale first, then the rows, and what it cost."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable

import torch

from gramary.errors import ArgumentError
from gramary.files.layout import TableSource
from gramary.files.pack.source_rows import stream_source
from gramary.model.codecs import (
    E2M1_MAX,
    E4M3_MAX,
    PLAIN_DTYPES,
    SCALED_CODECS,
    Codec,
)
from gramary.native import recode as native

TARGETS = ("keep", "bf16", "fp8", "nvfp4")

CHUNK_BYTES = 32 << 20

Progress = Callable[[int, int], None]


@dataclasses.dataclass
class RecodingError:
    """How far re-coded values are from the source's, over the rows of one run.

    Attributes:
        num_values: values compared.
        max_abs: largest absolute difference.
        sum_squares: sum of squared differences.
        sum_source_squares: sum of squared source values.
    """

    num_values: int = 0
    max_abs: float = 0.0
    sum_squares: float = 0.0
    sum_source_squares: float = 0.0

    @property
    def relative_rms(self) -> float:
        """Root of the squared error over the squared source; 0 for no error, at worst infinity."""
        if self.sum_squares == 0:
            return 0.0
        if self.sum_source_squares == 0:
            return math.inf
        return math.sqrt(self.sum_squares / self.sum_source_squares)

    def add(self, num_values: int, report: native.RecodeReport) -> None:
        """Counts what re-coding some rows has cost."""
        self.num_values += num_values
        self.max_abs = max(self.max_abs, report.max_abs)
        self.sum_squares += report.sum_squares
        self.sum_source_squares += report.sum_source_squares


class Recoder:
    """Turns encoded rows of one codec into those of another, by round to nearest even.

    Attributes:
        source: codec of the rows that come in.
        target: codec of the rows that go out.
        error: what re-coding has cost so far; None where rows are kept as they are.
    """

    def __init__(self, source: Codec, target: Codec) -> None:
        self.source = source
        self.target = target
        self.error = None if source == target else RecodingError()

    def recode(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns uint8 [n, target.row_bytes] for uint8 [n, source.row_bytes].

        Raises:
            ArgumentError: a value is not finite and the target cannot hold it.
        """
        if self.error is None:
            return rows
        recoded = torch.empty(len(rows), self.target.row_bytes, dtype=torch.uint8, device="cpu")
        report = native.recode(
            encoding_of(self.source), encoding_of(self.target), rows.contiguous(), recoded
        )
        if report.first_not_finite is not None:
            raise ArgumentError(
                f"rows: {self.target.name} cannot encode values that are not finite, and one is "
                f"in row {report.first_not_finite} of {len(rows)}"
            )
        self.error.add(len(rows) * self.source.row_dim, report)
        return recoded


def encoding_of(codec: Codec) -> native.Encoding:
    """Returns a codec as the native core takes it."""
    return native.Encoding(codec.name, codec.row_dim, codec.scale)


def choose_chunk_rows(source: TableSource, target: Codec, multiple: int = 1) -> int:
    """Returns rows a chunk: few enough that all buffers together stay below two shards.

    Args:
        source: the table that is read.
        target: codec of the rows that are written.
        multiple: what the number is a multiple of.
    """
    layout = source.layout
    shard_bytes = max(run.num_rows for run in layout.runs) * layout.row_bytes
    wanted = min(CHUNK_BYTES, max(shard_bytes // 8, 1 << 20))
    widest = max(layout.row_bytes, target.row_bytes)
    return max(1, wanted // widest // multiple) * multiple


def choose_codec(source: TableSource, target: str, progress: Progress | None = None) -> Codec:
    """Returns the codec that a pack of `source` gets, with its scale.

    Args:
        source: the table.
        target: one of `TARGETS`; "keep" takes the source's codec, and so does its own name.
        progress: called with (done_bytes, total_bytes) of the source while the largest magnitude
            is looked for.

    Raises:
        ArgumentError: `target` is unknown, does not fit rows of this width, or cannot hold a value
            of the source that is not finite.
        RowReadError: the source cannot be read.
    """
    if target not in TARGETS:
        raise ArgumentError(f"codec: expected one of {', '.join(TARGETS)}, got {target!r}")
    if target in ("keep", source.codec.name):
        return source.codec
    if target in PLAIN_DTYPES:
        return Codec(target, source.codec.row_dim)
    # Refuses a width that does not fit before the table is read.
    Codec(target, source.codec.row_dim, 1.0)
    return Codec(target, source.codec.row_dim, scale_for(target, find_largest(source, progress)))


def scale_for(target: str, largest: float) -> float:
    """Returns the table-wide scale that maps the largest magnitude to the largest code."""
    assert target in SCALED_CODECS
    top = E4M3_MAX if target == "fp8" else E4M3_MAX * E2M1_MAX
    scale = torch.tensor(largest / top, dtype=torch.float32, device="cpu").item()
    return scale if scale > 0 else 1.0


def find_largest(source: TableSource, progress: Progress | None = None) -> float:
    """Returns the largest magnitude among a table's values.

    Raises:
        ArgumentError: a value is not finite; the message names the first row with one.
        RowReadError: the source cannot be read.
    """
    layout = source.layout
    largest = 0.0
    chunk_rows = choose_chunk_rows(source, source.codec)
    with contextlib.closing(stream_source(layout, 0, layout.num_rows, chunk_rows)) as chunks:
        for first_row, rows in chunks:
            magnitude, wrong = native.find_largest(encoding_of(source.codec), rows)
            if wrong is not None:
                raise ArgumentError(
                    f"codec: row {first_row + wrong} of {source.path} holds a value that is not "
                    f"finite; only `keep` and `bf16` packs can hold it"
                )
            largest = max(largest, magnitude)
            if progress is not None:
                progress((first_row + len(rows)) * layout.row_bytes, layout.nbytes)
    return largest
