"""Codes to numbers inside a kernel, by integer arithmetic on 32-bit words of four or eight codes.

No float8 or float4 support of the GPU is used. A code's exponent and mantissa bits are moved to
the top of a float16's, two codes at a time; the float16 then is the code's value times a power of
two (2^-8 for e4m3, 2^-14 for e2m1), subnormal codes included, exactly. The caller multiplies by a
scale that holds the missing power of two, so that each value is still rounded as if it had been
decoded first.

Source: e4m3 and e2m1 are the OCP Microscaling Formats (MX) specification v1.0, sections 5.3.1 and
5.3.3; e4m3 has no infinities and its codes 0x7F and 0xFF are NaN.
"""

import triton
import triton.language as tl
from triton import knobs

# Exponents of the power of two that the halves below lack.
E4M3_SHIFT = 8
E2M1_SHIFT = 14

# The interpreter truncates where it should round to bfloat16.
_IS_INTERPRETED: tl.constexpr = tl.constexpr(bool(knobs.runtime.interpret))


@triton.jit
def e4m3_halves(codes):
    """Two e4m3 codes, in bits 0-7 and 16-23 of an int32, as two float16 (times 2^-8)."""
    magnitudes = codes & 0x007F007F
    # Adding one carries into bit 7 only from 0x7F; above the exponent that bit makes a NaN.
    nans = (magnitudes + 0x00010001) & 0x00800080
    return ((magnitudes | nans) << 7) | ((codes & 0x00800080) << 8)


@triton.jit
def e2m1_halves(codes):
    """Two e2m1 codes, in bits 0-3 and 16-19 of an int32, as two float16 (times 2^-14)."""
    return ((codes & 0x00070007) << 9) | ((codes & 0x00080008) << 12)


@triton.jit
def split_halves(halves):
    """int32 [..., n] of two float16 each -> int16 [..., n, 2], the low half first."""
    return tl.join(halves.to(tl.int16), (halves >> 16).to(tl.int16))


@triton.jit
def e4m3_values(words):
    """int32 [..., n] of four e4m3 codes each -> float32 [..., n, 2, 2] (times 2^-8), in order."""
    even = split_halves(e4m3_halves(words))
    odd = split_halves(e4m3_halves(words >> 8))
    return tl.join(even, odd).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def e2m1_values(words):
    """int32 [..., n] of eight e2m1 codes each -> float32 [..., n, 2, 2, 2] (times 2^-14)."""
    even = tl.join(split_halves(e2m1_halves(words)), split_halves(e2m1_halves(words >> 8)))
    odd = tl.join(split_halves(e2m1_halves(words >> 4)), split_halves(e2m1_halves(words >> 12)))
    return tl.join(even, odd).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def e4m3_value(codes):
    """int32 of one e4m3 code each -> float32 (times 2^-8)."""
    return e4m3_halves(codes).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def repeat_eight(values):
    """[..., n] -> [..., n, 2, 2, 2]: each value eight times, in the thread that has it."""
    values = tl.join(values, values)
    values = tl.join(values, values)
    return tl.join(values, values)


@triton.jit
def round_to(values, dtype: tl.constexpr):
    """float32 -> `dtype`, to the nearest, ties to even."""
    if dtype == tl.bfloat16 and _IS_INTERPRETED:
        bits = tl.where(values == values, values.to(tl.int32, bitcast=True), 0x7FC00000)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return values.to(dtype)
