"""Exporting window checkpoints on the GPU: every rule checked where the metadata live.

A program decides the fate of one entry and writes BQ columns of it along BC channels. Programs of
one entry decide alike, since nothing that decides is written by the launch.
"""

import triton
import triton.language as tl

from gramary.ops._triton.batch import load_count, load_request, take_turn
from gramary.ops._triton.conv import gated, load_gates, normed
from gramary.ops._triton.rounding import widen
from gramary.ops.gate_conv import ExportStatus

DISABLED = tl.constexpr(int(ExportStatus.DISABLED))
WRITTEN = tl.constexpr(int(ExportStatus.WRITTEN))
NOT_LIVE = tl.constexpr(int(ExportStatus.NOT_LIVE))
BAD_OFFSET = tl.constexpr(int(ExportStatus.BAD_OFFSET))
OUT_OF_POOL = tl.constexpr(int(ExportStatus.OUT_OF_POOL))
DUPLICATE = tl.constexpr(int(ExportStatus.DUPLICATE))
LIVE_SLOT = tl.constexpr(int(ExportStatus.LIVE_SLOT))


@triton.jit
def export_status(
    i_e, p_slots, p_slot_ids, slot, offset, is_live, q, num_seqs, num_entries, num_slots,
    BE: tl.constexpr,
):  # fmt: skip
    """The status of entry i_e, which names `slot`: the first rule that matches."""
    num_live_names = 0
    num_names = 0
    if is_live & (slot >= 0) & (slot < num_slots):
        for first in range(0, num_seqs, BE):
            o_r = first + tl.arange(0, BE)
            others = tl.load(p_slot_ids + o_r, mask=o_r < num_seqs, other=-1)
            num_live_names += tl.sum((others == slot).to(tl.int32))
        for first in range(0, num_seqs * num_entries, BE):
            o_e = first + tl.arange(0, BE)
            m_e = o_e < num_seqs * num_entries
            others = tl.load(p_slots + o_e, mask=m_e, other=-1)
            owners = tl.load(p_slot_ids + o_e // num_entries, mask=m_e, other=-1)
            m_e = (others == slot) & (owners >= 0) & (owners < num_slots) & (o_e != i_e)
            num_names += tl.sum(m_e.to(tl.int32))
    status = tl.where((offset >= 1) & (offset <= q), WRITTEN, BAD_OFFSET)
    status = tl.where(num_names > 0, DUPLICATE, status)
    status = tl.where(num_live_names > 0, LIVE_SLOT, status)
    status = tl.where(slot >= num_slots, OUT_OF_POOL, status)
    status = tl.where(is_live, status, NOT_LIVE)
    return tl.where(slot < 0, DISABLED, status)


@triton.jit
def export_kernel(
    p_value, p_u_norm, p_query_start_loc, p_start_positions, p_slot_ids, p_num_seqs, p_num_tokens,
    p_state, p_scratch, p_offsets, p_slots, p_status,
    value_stride, slot_stride, num_slots, T, R, history_at, num_entries, has_status,
    S: tl.constexpr, H: tl.constexpr, STATE_LENGTH: tl.constexpr, CAPACITY: tl.constexpr,
    IS_DECODE: tl.constexpr, BC: tl.constexpr, BQ: tl.constexpr, BE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Writes BQ columns of the checkpoint of one entry, and by one program its status."""
    C: tl.constexpr = S * H
    BLOCKS: tl.constexpr = (H + BC - 1) // BC
    SHORT: tl.constexpr = CAPACITY - STATE_LENGTH
    COLUMN_BLOCKS: tl.constexpr = (CAPACITY + BQ - 1) // BQ
    dtype: tl.constexpr = p_value.dtype.element_ty
    pid = tl.program_id(0)
    i_c = pid % (S * BLOCKS)
    i_q = pid // (S * BLOCKS) % COLUMN_BLOCKS
    i_e = pid // (S * BLOCKS * COLUMN_BLOCKS)
    i_r = i_e // num_entries
    i_s = i_c // BLOCKS
    if PDL:
        take_turn()
    num_seqs = load_count(p_num_seqs, R)
    num_tokens = load_count(p_num_tokens, T)
    target = tl.load(p_slots + i_e)
    offset = tl.load(p_offsets + i_e)
    begin, end, slot, is_live = load_request(
        i_r, p_query_start_loc, p_slot_ids, num_seqs, num_tokens, num_slots
    )
    q = end - begin
    if IS_DECODE:
        q = tl.where(q > SHORT, 0, q)
    status = export_status(
        i_e, p_slots, p_slot_ids, target, offset, is_live, q, num_seqs, num_entries, num_slots, BE
    )
    if (i_c == 0) & (i_q == 0) & (has_status != 0):
        tl.store(p_status + i_e, status)
    if status != WRITTEN:
        return

    o_h = i_c % BLOCKS * BC + tl.arange(0, BC)[None, :]
    o_c = i_s * H + o_h
    o_q = i_q * BQ + tl.arange(0, BQ)
    m_h = o_h < H
    end_position = tl.load(p_start_positions + i_r) + offset
    # Each column's distance before the checkpoint's end, from 1 to CAPACITY.
    distance = (end_position % CAPACITY).to(tl.int32) - o_q
    distance = tl.where(distance <= 0, distance + CAPACITY, distance)
    is_kept = (distance <= STATE_LENGTH) & (distance <= end_position) & (o_q < CAPACITY)
    o_column = o_q.to(tl.int64)[:, None] * C + o_c
    p_live = p_state + slot * slot_stride + o_column
    if IS_DECODE:
        n = tl.load(p_live, mask=is_kept[:, None] & m_h, other=0.0)
    elif q <= SHORT:
        # A short run overwrites no column that its windows need.
        n = tl.load(p_live, mask=is_kept[:, None] & m_h, other=0.0)
    else:
        is_run = is_kept & (distance <= offset)
        is_older = is_kept & (distance > offset)
        age = tl.where(is_older, STATE_LENGTH + offset - distance, 0).to(tl.int64)
        p_history = (p_scratch + history_at).to(tl.pointer_type(dtype))
        p_history += i_r.to(tl.int64) * (STATE_LENGTH * C)
        older = tl.load(p_history + age[:, None] * C + o_c, mask=is_older[:, None] & m_h, other=0.0)
        t = begin + offset - distance
        g, r = load_gates(p_scratch, t, i_s, is_run, S)
        v = tl.load(
            p_value + tl.cast(t, tl.int64)[:, None] * value_stride + o_h,
            mask=is_run[:, None] & m_h,
            other=0.0,
        )
        w_u = 1.0 + widen(tl.load(p_u_norm + o_c, mask=m_h, other=0.0))
        n = normed(gated(v, g[:, None]), r[:, None], w_u, dtype).to(dtype)
        n = tl.where(is_older[:, None], older, n)
        n = tl.where(is_kept[:, None], n, tl.zeros(n.shape, dtype))
    p_target = p_state + target * slot_stride + o_column
    tl.store(p_target, n, mask=(o_q < CAPACITY)[:, None] & m_h)
