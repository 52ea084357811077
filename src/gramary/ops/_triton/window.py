"""Windows on the GPU: the head of every request, and the columns that a run leaves behind.

The column of position p is p mod state_capacity. A program owns the columns of one request whose
distance to the request's start is `-i_d` modulo the dilation, along BC channels; it alone reads
them and it alone writes them, so a request of any length needs no second launch.
"""

import triton
import triton.language as tl

from gramary.ops._triton.batch import clear_rows, load_count, load_request, take_turn
from gramary.ops._triton.conv import convolve, gated, load_gates, load_taps, normed
from gramary.ops._triton.rounding import widen


@triton.jit
def column_before(start_column, distance, CAPACITY: tl.constexpr):
    """Column of the position `distance` (0 to CAPACITY) before the one in start_column."""
    column = start_column - distance
    return tl.where(column < 0, column + CAPACITY, column)


@triton.jit
def head_kernel(
    p_residual, p_value, p_u_norm, p_conv_weight,
    p_query_start_loc, p_start_positions, p_slot_ids, p_num_seqs, p_num_tokens,
    p_state, p_scratch, p_out,
    value_stride, slot_stride, num_slots, T, R, history_at,
    S: tl.constexpr, H: tl.constexpr, K: tl.constexpr, DILATION: tl.constexpr,
    CAPACITY: tl.constexpr,
    ADD: tl.constexpr, BC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Outputs of a request's head tokens, its saved input history, and its window."""
    C: tl.constexpr = S * H
    BLOCKS: tl.constexpr = (H + BC - 1) // BC
    STATE_LENGTH: tl.constexpr = DILATION * (K - 1)
    dtype: tl.constexpr = p_value.dtype.element_ty
    pid = tl.program_id(0)
    i_s = pid % (S * BLOCKS) // BLOCKS
    i_d = pid // (S * BLOCKS) % DILATION
    i_r = pid // (S * BLOCKS * DILATION)
    o_h = pid % BLOCKS * BC + tl.arange(0, BC)
    m_h = o_h < H
    o_c = i_s * H + o_h
    if PDL:
        take_turn()
    num_seqs = load_count(p_num_seqs, R)
    num_tokens = load_count(p_num_tokens, T)
    begin, end, slot, is_live = load_request(
        i_r, p_query_start_loc, p_slot_ids, num_seqs, num_tokens, num_slots
    )
    if i_d == 0:
        if (i_r < num_seqs) & (is_live == 0):
            clear_rows(p_residual, p_out, begin, end, 1, o_c, m_h, C, ADD)
        padding = tl.load(p_query_start_loc + num_seqs)
        clear_rows(p_residual, p_out, padding + i_r, num_tokens, R, o_c, m_h, C, ADD)
    q = end - begin
    if (is_live == 0) | (q == 0):
        return
    start = tl.load(p_start_positions + i_r)
    start_column = (start % CAPACITY).to(tl.int32)
    p_slot = p_state + slot * slot_stride + o_c
    w_u = 1.0 + widen(tl.load(p_u_norm + o_c, mask=m_h, other=0.0))

    p_history = p_scratch + history_at
    p_history = p_history.to(tl.pointer_type(dtype)) + i_r.to(tl.int64) * (STATE_LENGTH * C) + o_c
    ring = ()
    for i in tl.static_range(K - 1):
        distance = (K - 1 - i) * DILATION - i_d
        column = column_before(start_column, distance, CAPACITY)
        older = tl.load(
            p_slot + tl.cast(column, tl.int64) * C, mask=m_h & (distance <= start), other=0.0
        )
        m_save = m_h & (q > CAPACITY - STATE_LENGTH)
        tl.store(p_history + tl.cast(STATE_LENGTH - distance, tl.int64) * C, older, mask=m_save)
        ring = ring + (widen(older),)

    if i_d < q:
        taps = load_taps(p_conv_weight, o_c, m_h, K)
        rows = ()
        for i in tl.static_range(K - 1):
            t = begin + i_d + i * DILATION
            m_t = t < end
            g, r = load_gates(p_scratch, t, i_s, m_t, S)
            v = tl.load(
                p_value + tl.cast(t, tl.int64) * value_stride + o_h, mask=m_h & m_t, other=0.0
            )
            rows = rows + (g, r, v)
        for i in tl.static_range(K - 1):
            t = begin + i_d + i * DILATION
            if t < end:
                u = gated(rows[3 * i + 2], rows[3 * i])
                n = normed(u, rows[3 * i + 1], w_u, dtype)
                row = u + convolve(taps, ring, n, K, dtype)
                o_row = tl.cast(t, tl.int64) * C + o_c
                if ADD:
                    row = tl.load(p_residual + o_row, mask=m_h, other=0.0) + row
                tl.store(p_out + o_row, row, mask=m_h)
            else:
                n = tl.zeros([BC], tl.float32)
            ring = ring[1:] + (n,)

    # All of this program's columns were read before the first is written.
    tl.debug_barrier()
    for distance in range(DILATION - i_d, CAPACITY + 1, DILATION):
        # The newest position of the run in this column, if the run reaches it.
        rounds = (q - 1 + distance) // CAPACITY
        if rounds > 0:
            t = begin + rounds * CAPACITY - distance
            g, r = load_gates(p_scratch, t, i_s, t >= 0, S)
            v = tl.load(p_value + tl.cast(t, tl.int64) * value_stride + o_h, mask=m_h, other=0.0)
            column = column_before(start_column, distance, CAPACITY)
            newest = normed(gated(v, g), r, w_u, dtype).to(dtype)
            tl.store(p_slot + tl.cast(column, tl.int64) * C, newest, mask=m_h)
