"""The gate of a PLE layer on the GPU: key, residual and value reduced to two numbers a row.

A row is one stream of one token. Its gate g and the reciprocal norm r of its gated value are all
that the rest of the layer needs of key and residual: u = round(g * value) and
n = round(u * r * (1 + w_u)) are computed again from them wherever they are wanted.

A row of H channels is held as NB blocks of BH, so that sizes which are no power of two (2560 is
5 * 512) waste no lanes. Source of the formulas: `gramary/ops/reference/gate_conv.py`.
"""

import triton
import triton.language as tl

from gramary.ops._triton.batch import find_request, load_count, take_turn
from gramary.ops._triton.rounding import sigmoid, widen


@triton.jit
def load_blocks(p_row, m_row, H: tl.constexpr, BH: tl.constexpr, NB: tl.constexpr):
    """The NB blocks [BT, BH] of the rows that start at p_row [BT]; zero beyond H."""
    blocks = ()
    for i in tl.static_range(NB):
        o_h = i * BH + tl.arange(0, BH)
        p_block = p_row[:, None] + o_h[None, :]
        if H % BH == 0:
            blocks = blocks + (tl.load(p_block, mask=m_row[:, None], other=0.0),)
        else:
            m_block = m_row[:, None] & (o_h < H)[None, :]
            blocks = blocks + (tl.load(p_block, mask=m_block, other=0.0),)
    return blocks


@triton.jit
def load_row(
    o_t, last, p_key, p_residual, p_value, key_stride, value_stride, i_s,
    S: tl.constexpr, H: tl.constexpr, BH: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """The blocks of key, residual and value of tokens o_t [BT] below `last`, of stream i_s."""
    m_t = o_t < last
    row = o_t.to(tl.int64)
    k = load_blocks(p_key + row * key_stride + i_s * H, m_t, H, BH, NB)
    q = load_blocks(p_residual + row * (S * H) + i_s * H, m_t, H, BH, NB)
    v = load_blocks(p_value + row * value_stride, m_t, H, BH, NB)
    return k, q, v


@triton.jit
def load_weights(p_weight, H: tl.constexpr, BH: tl.constexpr, NB: tl.constexpr):
    """The NB blocks [1, BH] of the norm weight [H] at p_weight; zero beyond H."""
    blocks = ()
    for i in tl.static_range(NB):
        o_h = i * BH + tl.arange(0, BH)[None, :]
        blocks = blocks + (tl.load(p_weight + o_h, mask=o_h < H, other=0.0),)
    return blocks


@triton.jit
def reduce_row(k, q, v, w_k, w_q, eps, H: tl.constexpr, NB: tl.constexpr):
    """g (in the model's dtype) and r (float32) of rows, both [BT], from blocks of k, q and v."""
    dtype: tl.constexpr = k[0].dtype
    kk = tl.zeros(k[0].shape, tl.float32)
    qq = tl.zeros(k[0].shape, tl.float32)
    for i in tl.static_range(NB):
        x_k = widen(k[i])
        x_q = widen(q[i])
        kk = tl.fma(x_k, x_k, kk)
        qq = tl.fma(x_q, x_q, qq)
    # One reduction for both sums: its barrier is what a short batch waits for.
    sum_k, sum_q = tl.split(tl.sum(tl.join(kk, qq), axis=1))
    r_k = tl.rsqrt(sum_k * (1.0 / H) + eps)[:, None]
    r_q = tl.rsqrt(sum_q * (1.0 / H) + eps)[:, None]
    dots = tl.zeros(k[0].shape, tl.float32)
    for i in tl.static_range(NB):
        n_k = (widen(k[i]) * r_k * (1.0 + widen(w_k[i]))).to(dtype)
        n_q = (widen(q[i]) * r_q * (1.0 + widen(w_q[i]))).to(dtype)
        dots += widen(n_k * n_q)
    g = gate(tl.sum(dots, axis=1), H, dtype)
    uu = tl.zeros(k[0].shape, tl.float32)
    for i in tl.static_range(NB):
        u = widen(g[:, None] * v[i])
        uu = tl.fma(u, u, uu)
    r = tl.rsqrt(tl.sum(uu, axis=1) * (1.0 / H) + eps)
    return g, r


@triton.jit
def gate(dot, H: tl.constexpr, dtype: tl.constexpr):
    """g = sigmoid(sign(d) * sqrt(max(|d|, 1e-6))) of d = dot / sqrt(H), rounded as the model."""
    ONE_OVER_ROOT_H: tl.constexpr = H**-0.5
    d = (dot.to(dtype).to(tl.float32) * ONE_OVER_ROOT_H).to(dtype).to(tl.float32)
    magnitude = tl.abs(d)
    # A comparison that lets NaN through, unlike the maximum.
    magnitude = tl.where(magnitude < 1e-6, 1e-6, magnitude).to(dtype).to(tl.float32)
    root = tl.sqrt(magnitude).to(dtype).to(tl.float32)
    sign = tl.where(d < 0, -1.0, tl.where(d > 0, 1.0, 0.0))
    return sigmoid(sign * root).to(dtype)


@triton.jit
def gate_kernel(
    p_residual, p_key, p_value, p_k_norm, p_q_norm,
    p_query_start_loc, p_slot_ids, p_num_seqs, p_num_tokens, p_scratch,
    key_stride, value_stride, num_slots, T, R, flags_at, eps,
    S: tl.constexpr, H: tl.constexpr, STATE_LENGTH: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr, NB: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Writes g and r of some tokens of one stream, BT at a time, and which are body tokens.

    The programs of a stream share the live tokens evenly, so that few of them are spread too. A
    body token has all its taps inside this run: it is of a live request and at least STATE_LENGTH
    tokens behind that request's first one.
    """
    if PDL:
        take_turn()
    i_s = tl.program_id(0) % S
    num_seqs = load_count(p_num_seqs, R)
    num_tokens = load_count(p_num_tokens, T)
    share = tl.cdiv(tl.cdiv(num_tokens, tl.num_programs(0) // S), BT) * BT
    first = tl.program_id(0) // S * share
    if first >= num_tokens:
        return
    w_k = load_weights(p_k_norm + i_s * H, H, BH, NB)
    w_q = load_weights(p_q_norm + i_s * H, H, BH, NB)
    last = tl.minimum(first + share, num_tokens)
    o_t = first + tl.arange(0, BT)
    k, q, v = load_row(o_t, last, p_key, p_residual, p_value, key_stride, value_stride, i_s,
                       S, H, BH, NB)  # fmt: skip
    for base in range(first, last, BT):
        # The next token's rows are on their way while this one's are reduced.
        next_k, next_q, next_v = load_row(
            base + BT + tl.arange(0, BT), last, p_key, p_residual, p_value, key_stride,
            value_stride, i_s, S, H, BH, NB,
        )  # fmt: skip
        o_t = base + tl.arange(0, BT)
        m_t = o_t < last
        row = o_t.to(tl.int64)
        if i_s == 0:
            i_r = find_request(o_t, m_t, p_query_start_loc, num_seqs)
            begin = tl.load(p_query_start_loc + i_r, mask=m_t, other=0)
            end = tl.load(p_query_start_loc + i_r + 1, mask=m_t, other=0)
            slot = tl.load(p_slot_ids + i_r, mask=m_t & (num_seqs > 0), other=-1)
            is_live = (slot >= 0) & (slot < num_slots) & (o_t >= begin) & (o_t < end)
            is_body = is_live & (o_t - begin >= STATE_LENGTH)
            tl.store(p_scratch + flags_at + row, is_body.to(tl.uint8), mask=m_t)
        g, r = reduce_row(k, q, v, w_k, w_q, eps, H, NB)
        p_gates = p_scratch.to(tl.pointer_type(tl.float32)) + (row * S + i_s) * 2
        tl.store(p_gates, g.to(tl.float32), mask=m_t)
        tl.store(p_gates + 1, r, mask=m_t)
        k = next_k
        q = next_q
        v = next_v
