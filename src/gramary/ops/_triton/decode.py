"""Encoded rows that were brought to the GPU, decoded where they belong in the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gramary.ops._triton.rows import ZERO_ROW, load_rows, store_rows
from gramary.ops._triton.tiles import Format, Tile, tile_for

if TYPE_CHECKING:
    from gramary.model.codecs import Codec


@triton.jit(do_not_specialize=["address", "p_positions", "N", "num_out", "scale"])
def decode_kernel(
    address: tl.int64, p_positions, p_out, N: tl.int64, num_out: tl.int64, scale,
    HAS_POSITIONS: tl.constexpr,
    ROW_BYTES: tl.constexpr, CODEC: tl.constexpr, DIM: tl.constexpr, BITS: tl.constexpr,
    ALIGN: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Decodes BR staged rows a program."""
    i_row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    m_row = i_row < N
    if HAS_POSITIONS:
        i_out = tl.load(p_positions + i_row, mask=m_row, other=-1).to(tl.int64)
    else:
        i_out = tl.where(m_row, i_row, -1)
    i_out = tl.where(i_out < num_out, i_out, -1)
    row_address = tl.where(i_out >= 0, address + i_row * ROW_BYTES, ZERO_ROW)
    chunks = load_rows(row_address, CODEC, DIM, BITS, BE, ALIGN)
    store_rows(chunks, p_out, i_out, scale, CODEC, DIM, BR, BE)


def decode(
    encoded: torch.Tensor,
    codec: Codec,
    out: torch.Tensor,
    positions: torch.Tensor | None = None,
    *,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Decodes staged rows into `out` and returns it, on the current stream.

    Args:
        encoded: uint8 [n, row_bytes], contiguous, on the device.
        codec: how they are encoded.
        out: [m, row_dim], or uint8 [m, row_bytes] to copy; contiguous, on the device.
        positions: int32 or int64 [n], the row of `out` that each staged row goes to; those
            outside 0..m-1 go nowhere. None is 0..n-1.
        tile: rows and values a program; None chooses by the number of rows.
    """
    num_rows = encoded.shape[0]
    if num_rows == 0:
        return out
    form = Format.of(codec, out, encoded.data_ptr())
    tile = tile or tile_for(num_rows)
    decode_kernel[(triton.cdiv(num_rows, tile.rows),)](
        encoded.data_ptr(),
        out if positions is None else positions,
        out.view(form.out_dtype),
        num_rows,
        out.shape[0],
        form.scale,
        HAS_POSITIONS=positions is not None,
        **form.constants(),
        **tile.constants(form),
    )
    return out
