"""Row encodings: how one table row becomes a run of bytes, and back.

`decode_rows_ref` is the truth every faster decoder is compared with, bit for bit. It works on the
bytes with integer arithmetic, so that it needs no float8 or float4 support of the machine.

Source: e4m3 (1 sign, 4 exponent bits with bias 7, 3 mantissa bits, no infinities, 0x7F is NaN)
and e2m1 are the OCP Microscaling Formats (MX) specification v1.0, sections 5.3.1 and 5.3.3; nvfp4
scales one e4m3 number over 16 e2m1 values and one float32 number over the table.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch

from gramary.errors import ArgumentError

PLAIN_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SCALED_CODECS = ("fp8", "nvfp4")
CODEC_NAMES = (*PLAIN_DTYPES, *SCALED_CODECS)
OUTPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.uint8)

NVFP4_BLOCK = 16
E4M3_MAX = 448.0
E2M1_MAX = 6.0


@dataclasses.dataclass(frozen=True)
class Codec:
    """How the rows of one table are encoded.

    Attributes:
        name: "bf16", "fp16", "fp32", "fp8" (e4m3) or "nvfp4".
        row_dim: values in a row; a multiple of 16 for nvfp4.
        scale: the table-wide scale of fp8 and nvfp4, exact in float32; None for the others.

    Raises:
        ArgumentError: an attribute is out of its range, or a scale is missing or too much.
    """

    name: str
    row_dim: int
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.name not in CODEC_NAMES:
            raise ArgumentError(
                f"codec: expected one of {', '.join(CODEC_NAMES)}, got {self.name!r}"
            )
        if type(self.row_dim) is not int or self.row_dim < 1:
            raise ArgumentError(f"row_dim: expected a positive integer, got {self.row_dim!r}")
        if self.name == "nvfp4" and self.row_dim % NVFP4_BLOCK:
            raise ArgumentError(
                f"row_dim: nvfp4 needs a multiple of {NVFP4_BLOCK}, got {self.row_dim}"
            )
        if self.name in SCALED_CODECS:
            _check_scale(self.name, self.scale)
        elif self.scale is not None:
            raise ArgumentError(f"scale: {self.name} rows have none, got {self.scale!r}")

    @functools.cached_property
    def row_bytes(self) -> int:
        """Bytes of one encoded row."""
        if self.name == "nvfp4":
            return self.row_dim // 2 + self.row_dim // NVFP4_BLOCK
        return self.row_dim * {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}[self.name]

    @functools.cached_property
    def default_dtype(self) -> torch.dtype:
        """The dtype rows are decoded to when none is asked for."""
        return PLAIN_DTYPES.get(self.name, torch.bfloat16)

    def output_form(self, dtype: torch.dtype | None) -> tuple[torch.dtype, int]:
        """Returns `dtype`, or the default one for None, and the elements that one row has in it.

        They are `row_bytes` for uint8, else `row_dim`.

        Raises:
            ArgumentError: rows cannot be given in `dtype`.
        """
        if dtype is None:
            dtype = self.default_dtype
        elif dtype not in OUTPUT_DTYPES:
            names = ", ".join(str(each) for each in OUTPUT_DTYPES)
            raise ArgumentError(f"dtype: expected one of {names}, got {dtype}")
        return dtype, self.row_bytes if dtype == torch.uint8 else self.row_dim

    def output_width(self, dtype: torch.dtype | None) -> int:
        """Returns the elements that one row has in `dtype`, as `output_form`."""
        return self.output_form(dtype)[1]


def _check_scale(name: str, scale: float | None) -> None:
    if not isinstance(scale, float) or not math.isfinite(scale) or scale <= 0:
        raise ArgumentError(f"scale: {name} needs a finite float above zero, got {scale!r}")
    if torch.tensor(scale, dtype=torch.float32, device="cpu").item() != scale:
        raise ArgumentError(f"scale: expected a value exact in float32, got {scale!r}")


def decode_rows_ref(
    codec: Codec, encoded: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Returns the values of encoded rows, in plain torch.

    fp8 is `float32(code) * float32(scale)`; nvfp4 is `(float32(code) * float32(block scale)) *
    float32(scale)`; each product is rounded to float32, and then the value once to `dtype`.

    Args:
        codec: how the rows are encoded.
        encoded: uint8 [..., row_bytes], on any device.
        dtype: bfloat16, float16, float32, or uint8 for the encoded bytes themselves; None is
            `codec.default_dtype`.

    Returns:
        [..., row_dim] in `dtype` on the rows' device ([..., row_bytes] for uint8), freshly
        allocated except for uint8, which is `encoded`.

    Raises:
        ArgumentError: `encoded` is not uint8 of `row_bytes` columns, or `dtype` is not supported.
    """
    dtype, _ = codec.output_form(dtype)
    _check_encoded("encoded", encoded, codec.row_bytes)
    if dtype == torch.uint8:
        return encoded
    if codec.name in PLAIN_DTYPES:
        return encoded.contiguous().view(PLAIN_DTYPES[codec.name]).to(dtype, copy=True)
    scale = torch.tensor(codec.scale, dtype=torch.float32, device=encoded.device)
    if codec.name == "fp8":
        return (decode_e4m3_ref(encoded) * scale).to(dtype)
    num_code_bytes = codec.row_dim // 2
    codes, block_scales = encoded[..., :num_code_bytes], encoded[..., num_code_bytes:]
    blocks = _split_blocks(decode_e2m1_ref(codes)) * decode_e4m3_ref(block_scales).unsqueeze(-1)
    return (blocks * scale).flatten(-2).to(dtype)


def decode_e4m3_ref(codes: torch.Tensor) -> torch.Tensor:
    """Returns the float32 values of e4m3 codes (uint8, any shape), by integer arithmetic."""
    bits = codes.to(torch.int32)
    sign, exponent, mantissa = (bits & 0x80) << 24, (bits >> 3) & 0xF, bits & 0x7
    normal = ((exponent + 120) << 23) | (mantissa << 20)
    # Below the normal numbers a code is a multiple of 2^-9, which float32 holds exactly.
    subnormal = (mantissa.to(torch.float32) * 2.0**-9).view(torch.int32)
    magnitude = torch.where(exponent == 0, subnormal, normal)
    magnitude = torch.where((bits & 0x7F) == 0x7F, 0x7FC00000, magnitude)
    return (sign | magnitude).view(torch.float32)


def decode_e2m1_ref(packed: torch.Tensor) -> torch.Tensor:
    """Returns float32 [..., 2n] of packed e2m1 codes uint8 [..., n], the low nibble first."""
    bits = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2).to(torch.int32)
    sign, exponent, mantissa = (bits & 0x8) << 28, (bits >> 1) & 0x3, bits & 0x1
    normal = ((exponent + 126) << 23) | (mantissa << 22)
    subnormal = (mantissa.to(torch.float32) * 0.5).view(torch.int32)
    return (sign | torch.where(exponent == 0, subnormal, normal)).view(torch.float32)


def encode_rows(
    name: str, rows: torch.Tensor, scale: float | None = None
) -> tuple[torch.Tensor, Codec]:
    """Returns rows encoded by round to nearest even, and the codec that decodes them.

    Values too large for the codes of fp8 and nvfp4 become the largest code. A block of nvfp4 gets
    the scale that maps its largest magnitude to 6.

    Args:
        name: codec to encode with.
        rows: float32 [n, row_dim].
        scale: table-wide scale of fp8 or nvfp4; None maps the largest magnitude of `rows` to the
            largest code.

    Returns:
        uint8 [n, row_bytes], freshly allocated, and the codec with its scale.

    Raises:
        ArgumentError: the name, the rows or the scale are wrong, or fp8 or nvfp4 rows hold a
            value that is not finite.
    """
    if rows.dtype != torch.float32 or rows.dim() != 2:
        raise ArgumentError(f"rows: expected float32 [n, row_dim], got {describe(rows)}")
    if name in SCALED_CODECS:
        if not bool(torch.isfinite(rows).all()):
            raise ArgumentError(f"rows: {name} cannot encode values that are not finite")
        scale = _scale_for(name, rows) if scale is None else scale
    codec = Codec(name, rows.shape[1], scale)
    if name in PLAIN_DTYPES:
        return rows.contiguous().to(PLAIN_DTYPES[name], copy=True).view(torch.uint8), codec
    if name == "fp8":
        return _encode_e4m3(rows / torch.tensor(scale, device="cpu")), codec
    blocks = _split_blocks(rows)
    block_scales = _encode_e4m3(
        blocks.abs().amax(-1) / E2M1_MAX / torch.tensor(scale, device="cpu")
    )
    steps = decode_e4m3_ref(block_scales).unsqueeze(-1) * torch.tensor(scale, device="cpu")
    # A block whose scale rounds to zero is all zeros, whatever its codes.
    codes = _encode_e2m1(torch.where(steps > 0, blocks / steps, 0.0).flatten(-2))
    return join_nvfp4(codes, block_scales), codec


def join_nvfp4(weight: torch.Tensor, block_scales: torch.Tensor) -> torch.Tensor:
    """Returns nvfp4 rows uint8 [n, row_dim/2 + row_dim/16] from the two tensors of a checkpoint.

    Args:
        weight: uint8 [n, row_dim/2], two codes a byte, low nibble the even column.
        block_scales: uint8 or float8_e4m3fn [n, row_dim/16].

    Raises:
        ArgumentError: a dtype or shape is wrong.
    """
    scales = block_scales.contiguous().view(torch.uint8)
    if weight.dim() != 2 or weight.shape[1] % (NVFP4_BLOCK // 2):
        raise ArgumentError(f"weight: expected uint8 [n, row_dim/2], got {describe(weight)}")
    num_blocks = weight.shape[1] // (NVFP4_BLOCK // 2)
    _check_encoded("weight", weight, weight.shape[1])
    _check_encoded("block_scales", scales, num_blocks)
    if scales.shape != (weight.shape[0], num_blocks):
        raise ArgumentError(
            f"block_scales: expected [{weight.shape[0]}, {num_blocks}], got {describe(scales)}"
        )
    return torch.cat((weight, scales), dim=1)


def describe(tensor: torch.Tensor) -> str:
    """Returns a tensor's dtype and shape as messages show them, such as `float32 [2, 3]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _check_encoded(argument: str, encoded: torch.Tensor, num_columns: int) -> None:
    if encoded.dtype != torch.uint8 or encoded.dim() < 1 or encoded.shape[-1] != num_columns:
        raise ArgumentError(
            f"{argument}: expected uint8 [..., {num_columns}], got {describe(encoded)}"
        )


def _split_blocks(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(*values.shape[:-1], values.shape[-1] // NVFP4_BLOCK, NVFP4_BLOCK)


def _scale_for(name: str, rows: torch.Tensor) -> float:
    largest = float(rows.abs().max()) if rows.numel() else 0.0
    top = E4M3_MAX if name == "fp8" else E4M3_MAX * E2M1_MAX
    scale = torch.tensor(largest / top, dtype=torch.float32, device="cpu").item()
    return scale if scale > 0 else 1.0


def _encode_e4m3(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def _encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Returns packed codes [..., n/2] of float32 [..., n]; ties go to the even code."""
    magnitude = values.abs()
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for code, middle in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        codes += magnitude >= middle if code % 2 else magnitude > middle
    codes |= torch.signbit(values).to(torch.uint8) << 3
    return codes[..., 0::2] | (codes[..., 1::2] << 4)
