"""n-gram row ids on the GPU.

Row of head h for token t0 with predecessors t1, t2, ...: `floor_mod(t0*m0 ^ t1*m1 ^ ..., size[h])
+ offset[h]` in wrapping int64, where a predecessor behind an EOS or before the start of its
request is EOS.

Source: `Qwen4ExpTextNGramEmbedding` of Hugging Face transformers 5.24
(`transformers/models/qwen4_exp/modeling_qwen4_exp.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gramary.ops._triton.sticky_error import HISTORY_TOKEN, TOKEN, report_first

if TYPE_CHECKING:
    from gramary.flat_batch import FlatBatch
    from gramary.model.hashing import HashSpec

# What the hash writes where no row belongs: nothing is read for a token that is padding; a token
# outside the vocabulary makes its rows NaN.
PADDING_ID = tl.constexpr(-1)
WRONG_ID = tl.constexpr(-2)

_BLOCK_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class HashConstants:
    """A HashSpec's constants as the kernels read them; made once a table and device.

    Attributes:
        vocab_size, eos_token_id, ngram_size, heads_per_ngram: as in the HashSpec.
        values: int64 [ngram_size + 3*num_heads] on the device: the multipliers, then each head's
            size, offset and reciprocal `2^64 // size` (its bits, as int64).
    """

    vocab_size: int
    eos_token_id: int
    ngram_size: int
    heads_per_ngram: int
    values: torch.Tensor

    @classmethod
    def of(cls, spec: HashSpec, device: torch.device | str) -> HashConstants:
        """Returns the constants of `spec` in `device`'s memory."""
        reciprocals = [_wrap_int64((1 << 64) // size) for size in spec.sizes]
        values = [*spec.multipliers, *spec.sizes, *spec.offsets, *reciprocals]
        return cls(
            spec.vocab_size,
            spec.eos_token_id,
            spec.ngram_size,
            spec.heads_per_ngram,
            torch.tensor(values, dtype=torch.int64, device=device),
        )

    @property
    def num_heads(self) -> int:
        """Rows of one token."""
        return (self.ngram_size - 1) * self.heads_per_ngram


@functools.lru_cache(maxsize=64)
def constants_of(spec: HashSpec, device: torch.device) -> HashConstants:
    """Returns the constants of `spec` in `device`'s memory, made at the first call."""
    return HashConstants.of(spec, device)


def _wrap_int64(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


@triton.jit
def floor_mod(x, size, reciprocal):
    """x modulo `size` for every int64 x, without a division.

    `reciprocal` is 2^64 // size. For 0 <= u < 2^63 the high half of u * reciprocal is u // size or
    one less, since u * (2^64 / size - reciprocal) < 2^64; and for negative x, with u = ~x = -x-1,
    floor_mod(x) = size - 1 - floor_mod(u).
    """
    u = x ^ (x >> 63)
    remainder = u - tl.umulhi(u, reciprocal) * size
    remainder = tl.where(remainder >= size, remainder - size, remainder)
    return tl.where(x < 0, size - 1 - remainder, remainder)


@triton.jit
def find_requests(i_t, m_t, p_query_start_loc, R, num_steps):
    """Last request that starts at or before each token, and its start, by binary search."""
    low = i_t * 0
    high = low + (R - 1)
    low_start = low + tl.load(p_query_start_loc)
    for _ in range(num_steps):
        middle = (low + high + 1) // 2
        start = tl.load(p_query_start_loc + middle, mask=m_t, other=0)
        is_at_or_before = start <= i_t
        low = tl.where(is_at_or_before, middle, low)
        low_start = tl.where(is_at_or_before, start, low_start)
        high = tl.where(is_at_or_before, high, middle - 1)
    return low, low_start


@triton.jit
def mix_ngrams(
    i_t, m_t, i_h, i_r, start, p_tokens, p_history, p_constants, R, vocab_size, eos_token_id,
    NGRAM: tl.constexpr, HEADS: tl.constexpr, HAS_HISTORY: tl.constexpr,
):  # fmt: skip
    """Mixed n-grams [BT, BH] of tokens i_t for heads i_h, given the tokens' requests.

    Returns with each the kind (0 if all is well), index and value of the first wrong token in it.
    """
    # Tokens of the request before this one; clamped, so that no metadata leads out of bounds.
    position = tl.minimum(tl.maximum(i_t - start, 0), i_t)
    token = tl.load(p_tokens + i_t, mask=m_t, other=0).to(tl.int64)
    mixed = token * tl.load(p_constants)
    kind = tl.where((token < 0) | (token >= vocab_size), TOKEN, 0)
    index = i_t.to(tl.int64)
    value = token
    is_behind_eos = i_t < 0
    nothing = tl.zeros([i_t.shape[0], i_h.shape[0]], tl.int64)
    head_mixed, head_kind, head_index, head_value = nothing, nothing, nothing, nothing
    for back in tl.static_range(1, NGRAM):
        is_in_batch = position >= back
        i_history = i_r.to(tl.int64) * (NGRAM - 1) + (NGRAM - 1 - back) + position
        previous = tl.load(p_tokens + i_t - back, mask=m_t & is_in_batch, other=0).to(tl.int64)
        if HAS_HISTORY:
            m_history = m_t & (position < back) & (i_r < R)
            older = tl.load(p_history + i_history, mask=m_history, other=0).to(tl.int64)
        else:
            older = eos_token_id
        previous = tl.where(is_in_batch, previous, older)
        previous = tl.where(is_behind_eos, eos_token_id, previous)
        is_behind_eos = is_behind_eos | (previous == eos_token_id)
        mixed = mixed ^ (previous * tl.load(p_constants + back))
        is_first = (kind == 0) & ((previous < 0) | (previous >= vocab_size))
        kind = tl.where(is_first, tl.where(is_in_batch, TOKEN, HISTORY_TOKEN), kind)
        index = tl.where(is_first, tl.where(is_in_batch, i_t - back, i_history), index)
        value = tl.where(is_first, previous, value)
        # Heads from here on hash this token too.
        m_h = (i_h >= (back - 1) * HEADS)[None, :]
        head_mixed = tl.where(m_h, mixed[:, None], head_mixed)
        head_kind = tl.where(m_h, kind[:, None], head_kind)
        head_index = tl.where(m_h, index[:, None], head_index)
        head_value = tl.where(m_h, value[:, None], head_value)
    return head_mixed, head_kind, head_index, head_value


@triton.jit
def hash_rows(
    i_t, m_t, i_h, p_tokens, p_query_start_loc, p_history, p_constants, R, tokens_per_request,
    num_steps, vocab_size, eos_token_id,
    NGRAM: tl.constexpr, HEADS: tl.constexpr, HAS_HISTORY: tl.constexpr,
):  # fmt: skip
    """Row ids [BT, BH] of tokens i_t [BT] for heads i_h [BH].

    Returns the ids (PADDING_ID for tokens beyond the last request, WRONG_ID where a token that is
    hashed lies outside the vocabulary), and kind, index and value of what is wrong there.
    """
    NUM_HEADS: tl.constexpr = (NGRAM - 1) * HEADS
    num_tokens = tl.load(p_query_start_loc + R)
    # The guess that requests are equally long, as in decoding, lets every load go out at once;
    # boundaries are searched only where it is wrong.
    i_r = tl.maximum(tl.minimum(i_t // tokens_per_request, R - 1), 0)
    start = i_r * tokens_per_request
    m_r = m_t & (i_r < R)
    right_start = tl.load(p_query_start_loc + i_r, mask=m_r, other=0)
    end = tl.load(p_query_start_loc + i_r + 1, mask=m_r, other=0)
    mixed, kind, index, value = mix_ngrams(
        i_t, m_t, i_h, i_r, start, p_tokens, p_history, p_constants, R, vocab_size, eos_token_id,
        NGRAM, HEADS, HAS_HISTORY,
    )  # fmt: skip
    m_t = m_t & (i_t < num_tokens)
    is_missed = m_t & ((right_start != start) | (i_t >= end))
    if tl.max(is_missed.to(tl.int32), axis=0) > 0:
        i_r, start = find_requests(i_t, m_t, p_query_start_loc, R, num_steps)
        mixed, kind, index, value = mix_ngrams(
            i_t, m_t, i_h, i_r, start, p_tokens, p_history, p_constants, R, vocab_size,
            eos_token_id, NGRAM, HEADS, HAS_HISTORY,
        )  # fmt: skip

    m_h = i_h < NUM_HEADS
    p_head = p_constants + NGRAM + i_h
    size = tl.load(p_head, mask=m_h, other=2)[None, :]
    offset = tl.load(p_head + NUM_HEADS, mask=m_h, other=0)[None, :]
    reciprocal = tl.load(p_head + 2 * NUM_HEADS, mask=m_h, other=0)[None, :]
    row_ids = floor_mod(mixed, size, reciprocal) + offset
    row_ids = tl.where(kind > 0, WRONG_ID, row_ids)
    return tl.where(m_t[:, None] & m_h[None, :], row_ids, PADDING_ID), kind, index, value


@triton.jit
def tokens_and_heads(T, NUM_HEADS: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr):
    """This program's tokens and heads, and the flat places of its rows (-1 where there is none).

    Programs go through all tokens before the next block of heads, whose rows lie elsewhere in
    the table.
    """
    num_blocks = tl.maximum((T + BT - 1) // BT, 1)
    i_p = tl.program_id(0)
    i_t = (i_p % num_blocks) * BT + tl.arange(0, BT)
    i_h = (i_p // num_blocks) * BH + tl.arange(0, BH)
    i_row = i_t.to(tl.int64)[:, None] * NUM_HEADS + i_h[None, :]
    m_row = (i_t < T)[:, None] & (i_h < NUM_HEADS)[None, :]
    return i_t, i_h, tl.where(m_row, i_row, -1)


@triton.jit(do_not_specialize=["p_tokens", "p_query_start_loc", "p_history", "T", "R",
                               "tokens_per_request", "num_steps", "vocab_size",
                               "eos_token_id"])  # fmt: skip
def ngram_ids_kernel(
    p_tokens, p_query_start_loc, p_history, p_constants, p_error, p_out,
    T: tl.int32, R: tl.int32, tokens_per_request: tl.int32, num_steps: tl.int32,
    vocab_size: tl.int64, eos_token_id: tl.int64,
    NGRAM: tl.constexpr, HEADS: tl.constexpr, HAS_HISTORY: tl.constexpr, HAS_ERROR: tl.constexpr,
    BT: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Writes the ids of BT tokens and BH heads a program."""
    i_t, i_h, i_row = tokens_and_heads(T, (NGRAM - 1) * HEADS, BT, BH)
    row_ids, kind, index, value = hash_rows(
        i_t, i_t < T, i_h, p_tokens, p_query_start_loc, p_history, p_constants, R,
        tokens_per_request, num_steps, vocab_size, eos_token_id, NGRAM, HEADS, HAS_HISTORY,
    )  # fmt: skip
    tl.store(p_out + i_row, row_ids, mask=i_row >= 0)
    if HAS_ERROR:
        report_first(p_error, row_ids == WRONG_ID, kind, index, value)


def ngram_ids(
    constants: HashConstants,
    batch: FlatBatch,
    out: torch.Tensor,
    error: torch.Tensor | None = None,
) -> torch.Tensor:
    """Writes the row ids of a batch and returns `out`, on the current stream.

    Args:
        constants: of the table, on the tokens' device.
        batch: on the constants' device.
        out: int64 [T, num_heads], contiguous: -1 for tokens beyond query_start_loc[-1], -2 where
            a hashed token lies outside the vocabulary.
        error: int64 [4], sticky (see `gramary.ops._triton.sticky_error`); None reports nothing.
    """
    num_tokens = batch.token_ids.shape[0]
    if num_tokens == 0:
        return out
    num_blocks = triton.cdiv(num_tokens, _BLOCK_TOKENS)
    BH = triton.next_power_of_2(constants.num_heads)
    ngram_ids_kernel[(num_blocks,)](
        batch.token_ids,
        batch.query_start_loc,
        batch.token_ids if batch.history is None else batch.history,
        constants.values,
        out if error is None else error,
        out,
        *batch_sizes(batch),
        constants.vocab_size,
        constants.eos_token_id,
        NGRAM=constants.ngram_size,
        HEADS=constants.heads_per_ngram,
        HAS_HISTORY=batch.history is not None,
        HAS_ERROR=error is not None,
        BT=_BLOCK_TOKENS,
        BH=BH,
    )
    return out


def batch_sizes(batch: FlatBatch) -> tuple[int, int, int, int]:
    """Returns tokens, requests, tokens a request by guess, and steps of a binary search."""
    num_tokens, num_requests = batch.token_ids.shape[0], batch.query_start_loc.shape[0] - 1
    tokens_per_request = max(1, num_tokens // max(1, num_requests))
    return num_tokens, num_requests, tokens_per_request, max(0, num_requests - 1).bit_length()
