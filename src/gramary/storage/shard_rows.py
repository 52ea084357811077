"""A checkpoint's shard as encoded rows, whatever tensors it comes in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from gramary.errors import ArgumentError, ScaleError, ShardError
from gramary.model.codecs import NVFP4_BLOCK, PLAIN_DTYPES, Codec, describe, join_nvfp4

# Rows are put together in pieces, so that a shard never lies in memory twice.
PIECE_BYTES = 32 << 20


@dataclasses.dataclass(frozen=True)
class ShardRows:
    """The rows of one shard: `rows` uint8 [n, columns], beside which nvfp4 may have `scales`."""

    rows: torch.Tensor
    scales: torch.Tensor | None = None

    @property
    def num_rows(self) -> int:
        """Rows of the shard."""
        return int(self.rows.shape[0])

    def pieces(self, first: int, end: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields (index in the shard, encoded rows [n, row_bytes]) of rows first .. end - 1."""
        step = max(1, PIECE_BYTES // max(1, self.rows.shape[1]))
        for row in range(first, end, step):
            rows = self.rows[row : min(row + step, end)]
            if self.scales is not None:
                rows = join_nvfp4(rows, self.scales[row : min(row + step, end)])
            yield row, rows


def shard_rows(
    codec: Codec, index: int, rows: torch.Tensor, scales: torch.Tensor | None = None
) -> ShardRows:
    """Returns a shard's tensors as encoded rows, without a copy where they are contiguous.

    Args:
        codec: encoding of the table.
        index: the shard's number, for messages.
        rows: the checkpoint's tensor [n, columns] in its own dtype, or encoded rows uint8
            [n, row_bytes].
        scales: for nvfp4 in two tensors, the block scales float8_e4m3fn or uint8 [n, row_dim/16].

    Raises:
        ShardError: a dtype or shape is not the codec's.
        ScaleError: nvfp4 codes come without block scales.
        ArgumentError: scales come with rows that have none.
    """
    if not isinstance(rows, torch.Tensor):
        raise ShardError(f"shard {index}: expected a tensor, got {type(rows).__name__}")
    if rows.dim() != 2 or rows.layout != torch.strided or rows.is_meta:
        raise ShardError(
            f"shard {index}: expected rows of two dimensions, dense and with data, got "
            f"{describe(rows)}, {rows.layout}, on {rows.device}"
        )
    own_dtype = PLAIN_DTYPES.get(codec.name, torch.float8_e4m3fn)
    is_encoded = rows.dtype == torch.uint8 and rows.shape[1] == codec.row_bytes
    is_split = codec.name == "nvfp4" and not is_encoded
    if scales is not None and not is_split:
        raise ArgumentError(f"scales: {codec.name} rows {describe(rows)} take none")
    if is_split:
        return _split_nvfp4(codec, index, rows, scales)
    if not is_encoded and (rows.dtype != own_dtype or rows.shape[1] != codec.row_dim):
        raise ShardError(
            f"shard {index}: expected {own_dtype} [n, {codec.row_dim}] or encoded rows uint8 "
            f"[n, {codec.row_bytes}] of a {codec.name} table, got {describe(rows)}"
        )
    return ShardRows(rows.detach().contiguous().view(torch.uint8))


def _split_nvfp4(
    codec: Codec, index: int, rows: torch.Tensor, scales: torch.Tensor | None
) -> ShardRows:
    if rows.dtype != torch.uint8 or rows.shape[1] != codec.row_dim // 2:
        raise ShardError(
            f"shard {index}: expected uint8 [n, {codec.row_dim // 2}] of an nvfp4 table, got "
            f"{describe(rows)}"
        )
    if scales is None:
        raise ScaleError(f"shard {index}: nvfp4 rows need their block scales; pass scales=")
    num_blocks = codec.row_dim // NVFP4_BLOCK
    if (
        scales.dtype not in (torch.uint8, torch.float8_e4m3fn)
        or scales.shape != (rows.shape[0], num_blocks)
        or scales.device != rows.device
    ):
        raise ScaleError(
            f"shard {index}: expected block scales float8_e4m3fn [{rows.shape[0]}, {num_blocks}] "
            f"on {rows.device}, got {describe(scales)} on {scales.device}"
        )
    return ShardRows(rows.detach().contiguous(), scales.detach().contiguous().view(torch.uint8))
