"""Live metadata inside a kernel: counts, requests, and which of them run.

Nothing here trusts the metadata further than memory safety needs: counts are held to what was
planned, and boundaries to the tokens there are.
"""

import triton
import triton.language as tl


@triton.jit
def take_turn():
    """Waits for the launch ahead to end, then lets the one behind be set up.

    Every program does so before it reads, writes or returns: a launch that ended without waiting
    would let the one behind it start before the one ahead of it was over.
    """
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def load_count(p_count, limit):
    """The live number at p_count, held between 0 and what was planned for."""
    return tl.minimum(tl.maximum(tl.load(p_count), 0), limit)


@triton.jit
def load_request(i_r, p_query_start_loc, p_slot_ids, num_seqs, num_tokens, num_slots):
    """(begin, end, slot, is_live) of request i_r, which is below the plan's max_seqs."""
    m_r = i_r < num_seqs
    begin = tl.load(p_query_start_loc + i_r)
    end = tl.load(p_query_start_loc + i_r + 1)
    slot = tl.load(p_slot_ids + i_r)
    begin = tl.minimum(tl.maximum(begin, 0), num_tokens)
    end = tl.minimum(tl.maximum(end, begin), num_tokens)
    return begin, end, slot, m_r & (slot >= 0) & (slot < num_slots)


@triton.jit
def find_request(o_t, m_t, p_query_start_loc, num_seqs):
    """The last of num_seqs requests that starts at or before each token, else 0; by bisection."""
    low = o_t * 0
    high = low + tl.maximum(num_seqs - 1, 0)
    span = num_seqs
    while span > 1:
        middle = (low + high + 1) // 2
        begin = tl.load(p_query_start_loc + middle, mask=m_t, other=0)
        is_before = begin <= o_t
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle - 1)
        span = (span + 1) // 2
    return low


@triton.jit
def clear_rows(p_residual, p_out, first, end, step, o_c, m_c, C, ADD: tl.constexpr):
    """Gives tokens first, first + step, ... below end a contribution of zero."""
    for t in range(first, end, step):
        o_row = tl.cast(t, tl.int64) * C + o_c
        if ADD:
            row = tl.load(p_residual + o_row, mask=m_c, other=0.0)
        else:
            row = tl.zeros(o_c.shape, p_out.dtype.element_ty)
        tl.store(p_out + o_row, row, mask=m_c)
