"""Encoding rows anew in the C++ core: decoded to float32, rounded to nearest even, and compared.

The bytes are those of `gramary.model.codecs.encode_rows`. Large calls run on all threads of the
native pool; what is reported does not depend on how many those are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gramary.native.rows import require_contiguous, row_codec


class Encoding(NamedTuple):
    """A codec as the core takes it.

    Attributes:
        name: "bf16", "fp16", "fp32", "fp8" or "nvfp4".
        row_dim: values in a row.
        scale: the table's scale; None for plain codecs.
    """

    name: str
    row_dim: int
    scale: float | None


class RecodeReport(NamedTuple):
    """What became of the values of some rows.

    Attributes:
        first_not_finite: first row with a value that fp8 or nvfp4 cannot hold; None for none. The
            rows from there on were not all written, and the other fields do not count.
        max_abs: largest absolute difference, taken in float32.
        sum_squares: sum of squared differences.
        sum_source_squares: sum of squared source values.
    """

    first_not_finite: int | None
    max_abs: float
    sum_squares: float
    sum_source_squares: float


def recode(
    source: Encoding, target: Encoding, rows: torch.Tensor, out: torch.Tensor
) -> RecodeReport:
    """Writes rows in another encoding and returns how far they are from what they were.

    Args:
        source: how `rows` are encoded.
        target: bf16, fp8 or nvfp4, of the same width.
        rows: uint8 [n, row_bytes of source], contiguous, on the CPU.
        out: uint8 [n, row_bytes of target], contiguous, on the CPU.
    """
    decoder, encoder = row_codec(*source), row_codec(*target)
    require_contiguous(rows, torch.uint8)
    require_contiguous(out, torch.uint8)
    count = len(rows)
    if (rows.shape[1:], out.shape) != ((decoder.row_bytes,), (count, encoder.row_bytes)):
        raise AssertionError((rows.shape, out.shape, source, target))
    wrong, max_abs, squares, source_squares = decoder.recode(
        encoder, rows.data_ptr(), count, out.data_ptr()
    )
    return RecodeReport(None if wrong < 0 else wrong, max_abs, squares, source_squares)


def find_largest(source: Encoding, rows: torch.Tensor) -> tuple[float, int | None]:
    """Returns the largest magnitude of rows, and the first row with a value that is not finite.

    Args:
        source: how `rows` are encoded.
        rows: uint8 [n, row_bytes], contiguous, on the CPU.
    """
    codec = row_codec(*source)
    require_contiguous(rows, torch.uint8)
    if rows.shape[1:] != (codec.row_bytes,):
        raise AssertionError((rows.shape, source))
    magnitude, wrong = codec.largest(rows.data_ptr(), len(rows))
    return magnitude, None if wrong < 0 else wrong
