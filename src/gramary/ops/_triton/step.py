"""A decode step on the GPU in one launch: gate, norms, convolution, window and residual.

A program has one stream of one request and walks its few tokens (one, and the drafts). Columns
of n go to the window at once and are read back from there: a run that keeps the promise of mode
"decode" writes no column that it still reads.
"""

import triton
import triton.language as tl

from gramary.ops._triton.batch import clear_rows, load_count, load_request
from gramary.ops._triton.conv import convolve, gated, load_taps, normed
from gramary.ops._triton.gate import load_blocks, load_weights, reduce_row
from gramary.ops._triton.rounding import widen


@triton.jit
def step_kernel(
    p_residual, p_key, p_value, p_k_norm, p_q_norm, p_u_norm, p_conv_weight,
    p_query_start_loc, p_start_positions, p_slot_ids, p_num_seqs, p_num_tokens, p_state, p_out,
    key_stride, value_stride, slot_stride, num_slots, eps,
    T: tl.constexpr, R: tl.constexpr, S: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    DILATION: tl.constexpr, CAPACITY: tl.constexpr, ADD: tl.constexpr,
    BH: tl.constexpr, NB: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Writes the outputs and window columns of one stream of one request."""
    C: tl.constexpr = S * H
    SHORT: tl.constexpr = CAPACITY - DILATION * (K - 1)
    dtype: tl.constexpr = p_value.dtype.element_ty
    i_s = tl.program_id(0) % S
    i_r = tl.program_id(0) // S
    o_s = i_s * H
    if PDL:
        tl.extra.cuda.gdc_wait()
    num_seqs = load_count(p_num_seqs, R)
    num_tokens = load_count(p_num_tokens, T)
    start = tl.load(p_start_positions + i_r)
    begin, end, slot, is_live = load_request(
        i_r, p_query_start_loc, p_slot_ids, num_seqs, num_tokens, num_slots
    )
    w_k = load_weights(p_k_norm + o_s, H, BH, NB)
    w_q = load_weights(p_q_norm + o_s, H, BH, NB)
    w_u = load_weights(p_u_norm + o_s, H, BH, NB)
    taps = ()
    for i in tl.static_range(NB):
        o_tap = i * BH + tl.arange(0, BH)
        taps = taps + (load_taps(p_conv_weight, o_s + o_tap, o_tap < H, K),)

    runs = is_live & (end - begin <= SHORT)
    last = tl.where(runs, end, begin)
    column = (start % CAPACITY).to(tl.int32)
    p_slot = p_state + slot * slot_stride + o_s
    m_t = tl.full([1], 1, tl.int1)
    for t in range(begin, last):
        # What earlier tokens wrote to the window may be read by other threads now.
        tl.debug_barrier()
        row = tl.full([1], 0, tl.int64) + t
        position = start + (t - begin)
        k = load_blocks(p_key + row * key_stride + o_s, m_t, H, BH, NB)
        q = load_blocks(p_residual + row * C + o_s, m_t, H, BH, NB)
        v = load_blocks(p_value + row * value_stride, m_t, H, BH, NB)
        history = ()
        for i in tl.static_range(1, K):
            back = column - (K - i) * DILATION
            back = tl.where(back < 0, back + CAPACITY, back)
            p_column = p_slot + tl.full([1], 0, tl.int64) + tl.cast(back, tl.int64) * C
            m_column = m_t & (position >= (K - i) * DILATION)
            history = history + (load_blocks(p_column, m_column, H, BH, NB),)
        g, r = reduce_row(k, q, v, w_k, w_q, eps, H, NB)
        for i in tl.static_range(NB):
            o_h = i * BH + tl.arange(0, BH)[None, :]
            u = gated(v[i], g[:, None])
            n = normed(u, r[:, None], 1.0 + widen(w_u[i]), dtype)
            ring = ()
            weights = ()
            for j in tl.static_range(K - 1):
                ring = ring + (widen(history[j][i]),)
            for j in tl.static_range(K):
                weights = weights + (taps[i][j][None, :],)
            o = u + convolve(weights, ring, n, K, dtype)
            if ADD:
                o = q[i] + o
            tl.store(p_out + tl.cast(t, tl.int64) * C + o_s + o_h, o, mask=o_h < H)
            tl.store(p_slot + tl.cast(column, tl.int64) * C + o_h, n.to(dtype), mask=o_h < H)
        column = tl.where(column + 1 == CAPACITY, 0, column + 1)

    for i in tl.static_range(NB):
        o_h = i * BH + tl.arange(0, BH)
        if (i_r < num_seqs) & (runs == 0):
            clear_rows(p_residual, p_out, begin, end, 1, o_s + o_h, o_h < H, C, ADD)
        padding = tl.load(p_query_start_loc + num_seqs)
        clear_rows(p_residual, p_out, padding + i_r, num_tokens, R, o_s + o_h, o_h < H, C, ADD)
