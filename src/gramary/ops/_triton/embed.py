"""Tokens or row ids to decoded rows in one launch, over device and host extents together.

The GPU reads a registered host extent through its own address, with the same instruction as its
own memory, so that a split costs an address selection and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gramary.ops._triton.hash import (
    WRONG_ID,
    HashConstants,
    batch_sizes,
    hash_rows,
    tokens_and_heads,
)
from gramary.ops._triton.rows import WRONG_ROW, ZERO_ROW, load_rows, store_rows
from gramary.ops._triton.sticky_error import ROW_ID, report_first
from gramary.ops._triton.tiles import Format, Tile, tile_for
from gramary.ops.extents import Extents, kernel_arguments

if TYPE_CHECKING:
    from gramary.flat_batch import FlatBatch
    from gramary.model.codecs import Codec


@triton.jit
def row_addresses(
    row_ids, device_address, device_first, device_end, host_address, host_first, host_end,
    ROW_BYTES: tl.constexpr,
):  # fmt: skip
    """Where rows lie: in either extent, or ZERO_ROW (WRONG_ROW for ids below -1)."""
    in_device = (row_ids >= device_first) & (row_ids < device_end)
    in_host = (row_ids >= host_first) & (row_ids < host_end)
    base = tl.where(in_device, device_address, host_address)
    first = tl.where(in_device, device_first, host_first)
    elsewhere = tl.where(row_ids < -1, WRONG_ROW, ZERO_ROW)
    return tl.where(in_device | in_host, base + (row_ids - first) * ROW_BYTES, elsewhere)


@triton.jit(do_not_specialize=["p_tokens", "p_query_start_loc", "p_history", "T", "R",
                               "tokens_per_request", "num_steps", "vocab_size", "eos_token_id",
                               "device_address", "device_first", "device_end", "host_address",
                               "host_first", "host_end", "scale"])  # fmt: skip
def embed_kernel(
    p_tokens, p_query_start_loc, p_history, p_constants, p_error, p_out,
    T: tl.int32, R: tl.int32, tokens_per_request: tl.int32, num_steps: tl.int32,
    vocab_size: tl.int64, eos_token_id: tl.int64,
    device_address: tl.int64, device_first: tl.int64, device_end: tl.int64,
    host_address: tl.int64, host_first: tl.int64, host_end: tl.int64, scale,
    NGRAM: tl.constexpr, HEADS: tl.constexpr, HAS_HISTORY: tl.constexpr,
    ROW_BYTES: tl.constexpr, CODEC: tl.constexpr, DIM: tl.constexpr, BITS: tl.constexpr,
    ALIGN: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Hashes, gathers and decodes the rows of BR heads of one token a program."""
    i_t, i_h, i_row = tokens_and_heads(T, (NGRAM - 1) * HEADS, 1, BR)
    row_ids, kind, index, value = hash_rows(
        i_t, i_t < T, i_h, p_tokens, p_query_start_loc, p_history, p_constants, R,
        tokens_per_request, num_steps, vocab_size, eos_token_id, NGRAM, HEADS, HAS_HISTORY,
    )  # fmt: skip
    address = row_addresses(
        row_ids, device_address, device_first, device_end, host_address, host_first, host_end,
        ROW_BYTES,
    )  # fmt: skip
    chunks = load_rows(tl.reshape(address, [BR]), CODEC, DIM, BITS, BE, ALIGN)
    # While the rows are under way.
    report_first(p_error, row_ids == WRONG_ID, kind, index, value)
    store_rows(chunks, p_out, tl.reshape(i_row, [BR]), scale, CODEC, DIM, BR, BE)


@triton.jit(do_not_specialize=["p_row_ids", "N", "num_rows", "device_address", "device_first",
                               "device_end", "host_address", "host_first", "host_end",
                               "scale"])  # fmt: skip
def lookup_kernel(
    p_row_ids, p_error, p_out, N: tl.int64, num_rows: tl.int64,
    device_address: tl.int64, device_first: tl.int64, device_end: tl.int64,
    host_address: tl.int64, host_first: tl.int64, host_end: tl.int64, scale,
    ROW_BYTES: tl.constexpr, CODEC: tl.constexpr, DIM: tl.constexpr, BITS: tl.constexpr,
    ALIGN: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Gathers and decodes BR rows a program by their ids."""
    i_row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    m_row = i_row < N
    row_ids = tl.load(p_row_ids + i_row, mask=m_row, other=-1).to(tl.int64)
    wrong = (row_ids < -1) | (row_ids >= num_rows)
    address = row_addresses(
        tl.where(wrong, WRONG_ID, row_ids),
        device_address, device_first, device_end, host_address, host_first, host_end, ROW_BYTES,
    )  # fmt: skip
    chunks = load_rows(address, CODEC, DIM, BITS, BE, ALIGN)
    # While the rows are under way.
    report_first(p_error, wrong, ROW_ID, i_row, row_ids)
    store_rows(chunks, p_out, tl.where(m_row, i_row, -1), scale, CODEC, DIM, BR, BE)


def embed(
    constants: HashConstants,
    batch: FlatBatch,
    extents: Extents,
    codec: Codec,
    out: torch.Tensor,
    error: torch.Tensor,
    *,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Writes the decoded rows of a batch's tokens and returns `out`, on the current stream.

    Args:
        constants: of the table, on the tokens' device.
        batch: on the constants' device.
        extents: where the rows are; rows elsewhere give zeros.
        codec: how they are encoded.
        out: [T, num_heads*row_dim] in bfloat16, float16 or float32, or uint8
            [T, num_heads*row_bytes] for encoded rows; contiguous. Padding tokens give zeros; rows
            that hash a token outside the vocabulary are NaN (uint8: bytes 0xFF, which decode to
            NaN in every codec).
        error: int64 [4], sticky (see `gramary.ops._triton.sticky_error`).
        tile: rows and values a program; None chooses by the batch.
    """
    num_tokens = batch.token_ids.shape[0]
    if num_tokens == 0:
        return out
    num_rows = num_tokens * constants.num_heads
    form = Format.of(codec, out, extents.device.address | extents.host.address)
    tile = tile or tile_for(num_rows)
    # No more rows than a token has heads.
    BR = min(tile.rows, triton.next_power_of_2(constants.num_heads))
    embed_kernel[(num_tokens * triton.cdiv(constants.num_heads, BR),)](
        batch.token_ids,
        batch.query_start_loc,
        batch.token_ids if batch.history is None else batch.history,
        constants.values,
        error,
        out.view(form.out_dtype),
        *batch_sizes(batch),
        constants.vocab_size,
        constants.eos_token_id,
        *kernel_arguments(extents.device),
        *kernel_arguments(extents.host),
        form.scale,
        NGRAM=constants.ngram_size,
        HEADS=constants.heads_per_ngram,
        HAS_HISTORY=batch.history is not None,
        **form.constants(),
        **tile.constants(form) | {"BR": BR},
    )
    return out


def lookup(
    row_ids: torch.Tensor,
    extents: Extents,
    codec: Codec,
    out: torch.Tensor,
    error: torch.Tensor,
    *,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Writes the decoded rows `row_ids` and returns `out`, on the current stream.

    Args:
        row_ids: int32 or int64 [n], contiguous; -1 gives a zero row and reads nothing.
        extents: where the rows are; rows elsewhere give zeros.
        codec: how they are encoded.
        out: [n, row_dim], or uint8 [n, row_bytes] for encoded rows; contiguous. Ids outside the
            table give NaN (uint8: bytes 0xFF).
        error: int64 [4], sticky (see `gramary.ops._triton.sticky_error`).
        tile: rows and values a program; None chooses by the number of rows.
    """
    num_rows = row_ids.shape[0]
    if num_rows == 0:
        return out
    form = Format.of(codec, out, extents.device.address | extents.host.address)
    tile = tile or tile_for(num_rows)
    lookup_kernel[(triton.cdiv(num_rows, tile.rows),)](
        row_ids,
        error,
        out.view(form.out_dtype),
        num_rows,
        extents.num_rows,
        *kernel_arguments(extents.device),
        *kernel_arguments(extents.host),
        form.scale,
        **form.constants(),
        **tile.constants(form),
    )
    return out
