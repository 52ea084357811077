"""What the row kernels are compiled for: how rows are encoded, and how a program is shaped.

Neither depends on the number of tokens, requests or rows beyond a choice between three tiles, so
that a kernel is compiled at most three times for a table and an output dtype.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from gramary.errors import ArgumentError
from gramary.ops._triton.codes import E2M1_SHIFT, E4M3_SHIFT

if TYPE_CHECKING:
    from gramary.model.codecs import Codec

_PLAIN = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_CODE_BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8, "nvfp4": 4}
_INTEGERS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
_FLOAT32_MAX = torch.finfo(torch.float32).max
# The widest load of one thread.
_MAX_ALIGN = 16

# Rows of a batch up to which the small and the medium tile are used.
MAX_SMALL_ROWS = 1024
MAX_MEDIUM_ROWS = 16384


@dataclasses.dataclass(frozen=True)
class Format:
    """How rows come in and go out.

    Attributes:
        codec: the kernel's name of it: a codec's, or "copy" where the bytes stay as they are.
        row_bytes: bytes of an encoded row.
        dim: elements of an output row.
        bits: bits of an encoded element.
        align: bytes that every row's address is a multiple of.
        scale: what decoded codes are multiplied by, with the power of two they lack.
        out_dtype: element type that the kernel writes.
    """

    codec: str
    row_bytes: int
    dim: int
    bits: int
    align: int
    scale: float
    out_dtype: torch.dtype

    @classmethod
    def of(cls, codec: Codec, out: torch.Tensor, addresses: int) -> Format:
        """Returns the format for rows at any of `addresses` (or-ed), written to `out`.

        Raises:
            ArgumentError: `out` is not contiguous, its dtype is none of the output dtypes, plain
                rows are not aligned to their elements, or a scale is so large that it overflows
                with its power of two.
        """
        if not out.is_contiguous():
            raise ArgumentError(f"out: expected a contiguous tensor, got strides {out.stride()}")
        row_bytes = codec.row_bytes
        align = _alignment(addresses | row_bytes)
        if out.dtype in (torch.uint8, _PLAIN.get(codec.name)):
            width = min(8, _alignment(addresses | row_bytes | out.data_ptr()))
            integers = _INTEGERS[8 * width]
            return cls("copy", row_bytes, row_bytes // width, 8 * width, align, 1.0, integers)
        if out.dtype not in _PLAIN.values():
            raise ArgumentError(
                f"out: expected bfloat16, float16, float32 or uint8, got {out.dtype}"
            )
        bits = _CODE_BITS[codec.name]
        if codec.name in _PLAIN and 8 * align < bits:
            raise ArgumentError(f"rows: expected {bits // 8}-byte alignment, got {align}")
        return cls(codec.name, row_bytes, codec.row_dim, bits, align, _scale(codec), out.dtype)

    @property
    def lane_values(self) -> int:
        """Values one thread decodes at a time: 16 bytes of output, and a whole word of codes."""
        return max(16 // self.out_dtype.itemsize, {"fp8": 4, "nvfp4": 8}.get(self.codec, 1))

    @property
    def lane_bytes(self) -> int:
        """Encoded bytes of that many values, at most the widest load."""
        return min(_MAX_ALIGN, max(1, self.lane_values * self.bits // 8))

    def constants(self) -> dict[str, Any]:
        """Compile-time arguments of the row kernels."""
        return {
            "ROW_BYTES": self.row_bytes,
            "CODEC": self.codec,
            "DIM": self.dim,
            "BITS": self.bits,
        }


@dataclasses.dataclass(frozen=True)
class Tile:
    """Shape of a program of the row kernels.

    Attributes:
        rows: rows a program (of one token, where there are tokens); a power of two.
        lanes: threads side by side on one row; a power of two. They walk it together.
        num_warps: warps a program.
    """

    rows: int
    lanes: int
    num_warps: int

    def constants(self, form: Format) -> dict[str, Any]:
        """Compile-time arguments of the row kernels and their launch."""
        return {
            "BR": self.rows,
            "BE": self.lanes * form.lane_values,
            "ALIGN": min(form.align, form.lane_bytes),
            "num_warps": self.num_warps,
        }


# Among the best of a sweep on an H200 with fp8 rows, and what benchmarks/results/embed_gpu.json
# was measured with.
_SMALL = Tile(rows=4, lanes=32, num_warps=4)
_MEDIUM = Tile(rows=16, lanes=8, num_warps=4)
_LARGE = Tile(rows=16, lanes=4, num_warps=2)


def tile_for(num_rows: int) -> Tile:
    """Returns the tile for a batch of `num_rows` rows: spread thin for latency, or dense."""
    if num_rows <= MAX_SMALL_ROWS:
        return _SMALL
    return _MEDIUM if num_rows <= MAX_MEDIUM_ROWS else _LARGE


def _alignment(number: int) -> int:
    """Returns the largest power of two, at most 16, that divides `number`."""
    return min(number & -number, _MAX_ALIGN) if number else _MAX_ALIGN


def _scale(codec: Codec) -> float:
    """Returns the factor of decoded codes: the scale times the power of two the codes lack."""
    if codec.scale is None:
        return 1.0
    shift = E4M3_SHIFT if codec.name == "fp8" else E2M1_SHIFT + E4M3_SHIFT
    scale = codec.scale * 2.0**shift
    if scale > _FLOAT32_MAX:
        raise ArgumentError(
            f"scale: expected at most {_FLOAT32_MAX / 2.0**shift:g} on CUDA, got {codec.scale:g}"
        )
    return scale
