"""The dilated convolution on the GPU, over the tokens whose taps all lie inside the run.

Tokens that are a multiple of the dilation apart form a chain of their own: each needs the K-1
before it in the chain and no other. A program walks one chain along one block of channels and
keeps those K-1 columns of n in registers; the first ones it computes again from g, r and value.
So every input is read once, whatever K and dilation are, and no program waits for another.
"""

import triton
import triton.language as tl

from gramary.ops._triton.batch import load_count, take_turn
from gramary.ops._triton.rounding import mul_add, rounded, silu, widen


@triton.jit
def load_gates(p_scratch, t, i_s, m_t, S: tl.constexpr):
    """g and r, float32, of stream i_s of token t (or tokens, of one shape with m_t)."""
    p_gates = p_scratch.to(tl.pointer_type(tl.float32)) + (tl.cast(t, tl.int64) * S + i_s) * 2
    return tl.load(p_gates, mask=m_t, other=0.0), tl.load(p_gates + 1, mask=m_t, other=0.0)


@triton.jit
def gated(v, g):
    """u = round(g * value), in the model's dtype, of a block v and a gate that it can hold."""
    return g.to(v.dtype) * v


@triton.jit
def normed(u, r, w_u, dtype: tl.constexpr):
    """n = round(u * r * (1 + w)), as float32; `w_u` is 1 + w in float32."""
    return rounded(widen(u) * r * w_u, dtype)


@triton.jit
def load_taps(p_conv_weight, o_c, m_c, K: tl.constexpr):
    """The K taps [BC] in float32, oldest first, of channels o_c of the weight [C, K]."""
    KP: tl.constexpr = 2 if K == 2 else (4 if K <= 4 else 8)
    BC: tl.constexpr = o_c.shape[0]
    o_k = tl.arange(0, KP)
    # A channel's taps are neighbours: read as a tile, so that a thread reads them in one piece.
    tile = tl.load(
        p_conv_weight + o_c[:, None] * K + o_k[None, :],
        mask=m_c[:, None] & (o_k < K)[None, :],
        other=0.0,
    )
    if KP == 2:
        parts = tl.split(tile)
    elif KP == 4:
        low, high = halves(tile, BC, 2)
        parts = tl.split(low) + tl.split(high)
    else:
        low, high = halves(tile, BC, 4)
        a, b = halves(low, BC, 2)
        c, d = halves(high, BC, 2)
        parts = tl.split(a) + tl.split(b) + tl.split(c) + tl.split(d)
    taps = ()
    for i in tl.static_range(K):
        taps = taps + (widen(parts[i]),)
    return taps


@triton.jit
def halves(tile, BC: tl.constexpr, N: tl.constexpr):
    """The first and the last N columns of a tile [BC, 2 * N]."""
    return tl.split(tl.permute(tl.reshape(tile, (BC, 2, N)), (0, 2, 1)))


@triton.jit
def convolve(taps, ring, n, K: tl.constexpr, dtype: tl.constexpr):
    """c = silu(round(sum over taps)), rounded; `ring` holds the K-1 columns before n, float32."""
    y = taps[0] * ring[0]
    for i in tl.static_range(1, K - 1):
        y = mul_add(taps[i], ring[i], y, dtype)
    y = mul_add(taps[K - 1], n, y, dtype)
    return silu(rounded(y, dtype), dtype)


@triton.jit
def conv_kernel(
    p_residual, p_value, p_u_norm, p_conv_weight, p_num_tokens, p_scratch, p_out,
    value_stride, T, flags_at,
    S: tl.constexpr, H: tl.constexpr, K: tl.constexpr, DILATION: tl.constexpr,
    ADD: tl.constexpr,
    BC: tl.constexpr, WALK: tl.constexpr, UNROLL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Writes the outputs of the body tokens of one chain of WALK tokens, along BC channels."""
    BLOCKS: tl.constexpr = (H + BC - 1) // BC
    dtype: tl.constexpr = p_value.dtype.element_ty
    pid = tl.program_id(0)
    i_s = pid % (S * BLOCKS) // BLOCKS
    i_d = pid // (S * BLOCKS) % DILATION
    # Newest tokens first: the gates' launch read them last, and they are still in the cache.
    i_w = (tl.num_programs(0) - 1 - pid) // (S * BLOCKS * DILATION)
    first = i_w * (WALK * DILATION) + i_d
    o_h = pid % BLOCKS * BC + tl.arange(0, BC)
    m_h = o_h < H
    o_c = i_s * H + o_h
    w_u = 1.0 + widen(tl.load(p_u_norm + o_c, mask=m_h, other=0.0))
    taps = load_taps(p_conv_weight, o_c, m_h, K)
    if PDL:
        take_turn()
    num_tokens = load_count(p_num_tokens, T)
    if first >= num_tokens:
        return
    halo = ()
    for i in tl.static_range(K - 1):
        t = first - (K - 1 - i) * DILATION
        g, r = load_gates(p_scratch, t, i_s, t >= 0, S)
        v = tl.load(
            p_value + tl.cast(t, tl.int64) * value_stride + o_h, mask=m_h & (t >= 0), other=0.0
        )
        halo = halo + (g, r, v)
    o_t = first + tl.arange(0, WALK) * DILATION
    if tl.max(tl.load(p_scratch + flags_at + o_t, mask=o_t < num_tokens, other=0)) == 0:
        return
    ring = ()
    for i in tl.static_range(K - 1):
        u = gated(halo[3 * i + 2], halo[3 * i])
        ring = ring + (normed(u, halo[3 * i + 1], w_u, dtype),)
    last = tl.minimum(first + WALK * DILATION, num_tokens)
    for base in range(first, last, UNROLL * DILATION):
        rows = ()
        for i in tl.static_range(UNROLL):
            t = base + i * DILATION
            m_t = t < num_tokens
            g, r = load_gates(p_scratch, t, i_s, m_t, S)
            is_body = tl.load(p_scratch + flags_at + t, mask=m_t, other=0) != 0
            v = tl.load(
                p_value + tl.cast(t, tl.int64) * value_stride + o_h, mask=m_h & m_t, other=0.0
            )
            o_row = tl.cast(t, tl.int64) * (S * H) + o_c
            if ADD:
                x = tl.load(p_residual + o_row, mask=m_h & is_body, other=0.0)
                rows = rows + (g, r, is_body, v, x)
            else:
                rows = rows + (g, r, is_body, v, v)
        for i in tl.static_range(UNROLL):
            u = gated(rows[5 * i + 3], rows[5 * i])
            n = normed(u, rows[5 * i + 1], w_u, dtype)
            row = u + convolve(taps, ring, n, K, dtype)
            if ADD:
                row = rows[5 * i + 4] + row
            o_row = tl.cast(base + i * DILATION, tl.int64) * (S * H) + o_c
            tl.store(p_out + o_row, row, mask=m_h & rows[5 * i + 2])
            ring = ring[1:] + (n,)
