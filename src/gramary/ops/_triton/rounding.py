"""Arithmetic between two roundings of the model, inside a kernel.

Products and sums of two values of a 16-bit dtype are formed in that dtype by the kernels: float32
would hold the product exactly and the sum to more than twice the bits, so rounding once or by way
of float32 is the same, and the GPU works on two values an instruction. The kernels are compiled
without contraction of products and sums, which would drop the rounding between them.

What the compiler makes of single conversions and of an exponential costs more than the memory
traffic of the whole layer, so those are spelt in PTX, two values at a time where that helps.
Triton's interpreter, which has no PTX, takes the plain spelling beside it.
"""

import triton
import triton.language as tl
from triton import knobs

HAS_PTX: tl.constexpr = tl.constexpr(not knobs.runtime.interpret)


@triton.jit
def widen(x):
    """x, of any of the model's dtypes, as float32."""
    if HAS_PTX and x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
            "=r,=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        return x.to(tl.float32)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """x rounded to `dtype`, as float32 again."""
    if HAS_PTX and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 both;
            cvt.rn.bf16x2.f32 both, $3, $2;
            shl.b32 $0, both, 16;
            and.b32 $1, both, 0xffff0000;
            }""",
            "=r,=r,r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        return x.to(dtype).to(tl.float32)


@triton.jit
def mul_add(weight, x, total, dtype: tl.constexpr):
    """weight * x + total in float32, of weight and x that `dtype` can hold.

    Products of two 16-bit values are exact, so fusing them is free; float32's are rounded first.
    """
    if dtype == tl.float32:
        return weight * x + total
    else:
        return tl.fma(weight, x, total)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) in float32."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x, dtype: tl.constexpr):
    """x * sigmoid(x), float32 in, rounded to `dtype`."""
    if HAS_PTX and dtype != tl.float32:
        # exp(-x) = 2^(-x / ln 2); both approximations are good to the last bits of float32.
        y = tl.inline_asm_elementwise(
            """{
            .reg .f32 e;
            mul.f32 e, $1, 0fBFB8AA3B;
            ex2.approx.ftz.f32 e, e;
            add.f32 e, e, 0f3F800000;
            rcp.approx.ftz.f32 e, e;
            mul.f32 $0, $1, e;
            }""",
            "=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
        return y.to(dtype)
    else:
        return (x / (1.0 + tl.exp(-x))).to(dtype)
