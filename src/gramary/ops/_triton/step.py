"""A decode step on the GPU in one launch: gate, norms, convolution, window and residual.

A program has one stream of one request and walks its few tokens (one, and the drafts). Columns
of n go to the window at once and are read back from there: a run that keeps the promise of mode
"decode" writes no column that it still reads.
"""

import triton
import triton.language as tl

from gramary.ops._triton.batch import clear_rows, load_count, load_request, take_turn
from gramary.ops._triton.conv import convolve, gated, load_taps, normed
from gramary.ops._triton.gate import load_blocks, load_weights, reduce_row
from gramary.ops._triton.rounding import widen
from gramary.ops._triton.window import column_before


@triton.jit
def step_kernel(
    p_residual, p_key, p_value, p_k_norm, p_q_norm, p_u_norm, p_conv_weight,
    p_query_start_loc, p_start_positions, p_slot_ids, p_num_seqs, p_num_tokens, p_state, p_out,
    key_stride, value_stride, slot_stride, num_slots, T, R, eps,
    S: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    DILATION: tl.constexpr, CAPACITY: tl.constexpr, ADD: tl.constexpr,
    BH: tl.constexpr, NB: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Writes the outputs and window columns of one stream of one request."""
    C: tl.constexpr = S * H
    SHORT: tl.constexpr = CAPACITY - DILATION * (K - 1)
    i_s = tl.program_id(0) % S
    i_r = tl.program_id(0) // S
    o_s = i_s * H
    if PDL:
        take_turn()
    num_seqs = load_count(p_num_seqs, R)
    num_tokens = load_count(p_num_tokens, T)
    start = tl.load(p_start_positions + i_r)
    begin, end, slot, is_live = load_request(
        i_r, p_query_start_loc, p_slot_ids, num_seqs, num_tokens, num_slots
    )
    # Weights come while the numbers above are on their way, which the rows must wait for.
    w_k = load_weights(p_k_norm + o_s, H, BH, NB)
    w_q = load_weights(p_q_norm + o_s, H, BH, NB)
    w_u = load_weights(p_u_norm + o_s, H, BH, NB)
    taps = ()
    for i in tl.static_range(NB):
        o_tap = i * BH + tl.arange(0, BH)
        taps = taps + (load_taps(p_conv_weight, o_s + o_tap, o_tap < H, K),)
    padding = tl.load(p_query_start_loc + num_seqs)
    is_run = is_live & (end - begin <= SHORT)
    last = tl.where(is_run, end, begin)
    p_slot = p_state + slot * slot_stride + o_s
    column = (start % CAPACITY).to(tl.int32)

    # A token's rows are asked for before the token ahead of it is computed.
    row = tl.full([1], 0, tl.int64) + begin
    k, q, v = load_rows(p_key + row * key_stride + o_s, p_residual + row * C + o_s,
                        p_value + row * value_stride, row < last, H, BH, NB)  # fmt: skip
    if SHORT == 1:
        if begin < last:
            history = load_history(p_slot, column, start, C, K, DILATION, CAPACITY, H, BH, NB)
            run_token(
                k, q, v, w_k, w_q, w_u, taps, history, p_out + begin.to(tl.int64) * C + o_s,
                p_slot + column.to(tl.int64) * C, eps, H, K, ADD, BH, NB,
            )  # fmt: skip
    else:
        for t in range(begin, last):
            # What earlier tokens wrote to the window may be read by other threads now.
            tl.debug_barrier()
            position = start + (t - begin)
            history = load_history(p_slot, column, position, C, K, DILATION, CAPACITY, H, BH, NB)
            row = tl.full([1], 1, tl.int64) + t
            next_k, next_q, next_v = load_rows(
                p_key + row * key_stride + o_s, p_residual + row * C + o_s,
                p_value + row * value_stride, row < last, H, BH, NB,
            )  # fmt: skip
            run_token(
                k, q, v, w_k, w_q, w_u, taps, history, p_out + tl.cast(t, tl.int64) * C + o_s,
                p_slot + column.to(tl.int64) * C, eps, H, K, ADD, BH, NB,
            )  # fmt: skip
            column = tl.where(column + 1 == CAPACITY, 0, column + 1)
            k = next_k
            q = next_q
            v = next_v

    for i in tl.static_range(NB):
        o_h = i * BH + tl.arange(0, BH)
        if (i_r < num_seqs) & (is_run == 0):
            clear_rows(p_residual, p_out, begin, end, 1, o_s + o_h, o_h < H, C, ADD)
        clear_rows(p_residual, p_out, padding + i_r, num_tokens, R, o_s + o_h, o_h < H, C, ADD)


@triton.jit
def load_rows(p_k, p_q, p_v, m_row, H: tl.constexpr, BH: tl.constexpr, NB: tl.constexpr):
    """The blocks of one row of key, residual and value."""
    k = load_blocks(p_k, m_row, H, BH, NB)
    q = load_blocks(p_q, m_row, H, BH, NB)
    v = load_blocks(p_v, m_row, H, BH, NB)
    return k, q, v


@triton.jit
def load_history(
    p_slot, column, position, C: tl.constexpr, K: tl.constexpr, DILATION: tl.constexpr,
    CAPACITY: tl.constexpr, H: tl.constexpr, BH: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """The K-1 columns that a position needs, oldest first, each as its blocks."""
    history = ()
    for i in tl.static_range(1, K):
        distance = tl.full([1], (K - i) * DILATION, tl.int64)
        back = column_before(column.to(tl.int64), distance, CAPACITY)
        history = history + (load_blocks(p_slot + back * C, distance <= position, H, BH, NB),)
    return history


@triton.jit
def run_token(
    k, q, v, w_k, w_q, w_u, taps, history, p_out, p_column, eps,
    H: tl.constexpr, K: tl.constexpr, ADD: tl.constexpr, BH: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Writes one row's output and its column of n."""
    dtype: tl.constexpr = v[0].dtype
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
        row = u + convolve(weights, ring, n, K, dtype)
        if ADD:
            row = q[i] + row
        tl.store(p_out + o_h, row, mask=o_h < H)
        tl.store(p_column + o_h, n.to(dtype), mask=o_h < H)
