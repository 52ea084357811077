"""Re-coding rows on their way into a pack: the scale first, then the rows, and what it cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch

from gramary.codecs import (
    E2M1_MAX,
    E4M3_MAX,
    PLAIN_DTYPES,
    SCALED_CODECS,
    Codec,
    encode_rows,
)
from gramary.errors import ArgumentError
from gramary.native import rows as native_rows
from gramary.pack.source_rows import stream_source
from gramary.row_layout import TableSource

TARGETS = ("keep", "bf16", "fp8", "nvfp4")

# Re-coding takes some forty bytes of temporaries for each byte of rows.
RECODE_CHUNK_BYTES = 1 << 17

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

    def add(self, source: torch.Tensor, recoded: torch.Tensor) -> None:
        """Counts float32 rows and what became of them."""
        if not source.numel():
            return
        # In float32 a difference of near values is exact; only sums need more digits.
        difference = (recoded - source).view(-1)
        self.num_values += source.numel()
        self.max_abs = max(self.max_abs, float(difference.abs().max()))
        self.sum_squares += float(difference.double().square_().sum())
        self.sum_source_squares += float(source.view(-1).double().square_().sum())


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
        values = decode_to_float(self.source, rows)
        recoded, _ = encode_rows(self.target.name, values, self.target.scale)
        self.error.add(values, decode_to_float(self.target, recoded))
        return recoded


def decode_to_float(codec: Codec, rows: torch.Tensor) -> torch.Tensor:
    """Returns float32 [n, row_dim] for encoded rows uint8 [n, row_bytes], by the native core."""
    values = torch.empty(rows.shape[0], codec.row_dim)
    native_rows.decode(codec.name, codec.row_dim, codec.scale, rows.contiguous(), values)
    return values


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
    scale = torch.tensor(largest / top, dtype=torch.float32).item()
    return scale if scale > 0 else 1.0


def find_largest(source: TableSource, progress: Progress | None = None) -> float:
    """Returns the largest magnitude among a table's values.

    Raises:
        ArgumentError: a value is not finite; the message names the first row with one.
        RowReadError: the source cannot be read.
    """
    layout = source.layout
    largest = 0.0
    chunk_rows = max(1, RECODE_CHUNK_BYTES // layout.row_bytes)
    chunks = stream_source(layout, 0, layout.num_rows, chunk_rows)
    for first_row, rows in chunks:
        magnitudes = decode_to_float(source.codec, rows).abs_().amax(1)
        if not bool(torch.isfinite(magnitudes).all()):
            row = first_row + int((~torch.isfinite(magnitudes)).nonzero()[0])
            raise ArgumentError(
                f"codec: row {row} of {source.path} holds a value that is not finite; only "
                f"`keep` and `bf16` packs can hold it"
            )
        largest = max(largest, float(magnitudes.max()))
        if progress is not None:
            progress((first_row + len(rows)) * layout.row_bytes, layout.nbytes)
    return largest
