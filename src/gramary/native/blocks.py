"""Blocks of rows that end in their own checksum: building and checking, in the C++ core."""

from __future__ import annotations

import dataclasses

import torch

import gramary.native._core as _core
from gramary.errors import ArgumentError

CHECKSUM_BYTES = 8


@dataclasses.dataclass(frozen=True)
class BlockShape:
    """What the blocks of one pack look like.

    Attributes:
        row_bytes: bytes of one encoded row.
        rows_per_block: rows in a block, from its front.
        block_bytes: bytes of a block, its checksum in the last eight.
        checksum_seed: block n has the seed `checksum_seed + n` modulo 2^64.
    """

    row_bytes: int
    rows_per_block: int
    block_bytes: int
    checksum_seed: int

    def num_blocks(self, num_rows: int) -> int:
        """Returns how many blocks hold so many rows."""
        return -(-num_rows // self.rows_per_block)


def xxh64(data: torch.Tensor, seed: int = 0) -> int:
    """Returns the XXH64 digest of the bytes of a contiguous CPU tensor.

    Source: "xxHash fast digest algorithm", version 0.1.1, section "XXH64 algorithm description".
    """
    if not data.is_contiguous() or data.device.type != "cpu":
        raise ArgumentError(f"data: expected a contiguous CPU tensor, got one on {data.device}")
    return _core.xxh64(data.data_ptr(), data.nbytes, seed)


def pack_blocks(
    shape: BlockShape, rows: torch.Tensor, first_block: int, blocks: torch.Tensor
) -> None:
    """Fills whole blocks with rows, zeros and checksums.

    Args:
        shape: of the blocks.
        rows: uint8 [n, row_bytes] on the CPU, contiguous.
        first_block: number of the first block, for its checksum's seed.
        blocks: uint8 [ceil(n / rows_per_block) * block_bytes] on the CPU, contiguous; all of it
            is written.
    """
    num_bytes = shape.num_blocks(len(rows)) * shape.block_bytes
    _check_bytes("rows", rows, len(rows) * shape.row_bytes)
    _check_bytes("blocks", blocks, num_bytes)
    _core.pack_blocks(
        shape.row_bytes,
        shape.rows_per_block,
        shape.block_bytes,
        shape.checksum_seed,
        rows.data_ptr(),
        len(rows),
        first_block,
        blocks.data_ptr(),
    )


def find_bad_block(shape: BlockShape, blocks: torch.Tensor, first_block: int) -> int | None:
    """Returns the index in `blocks` of the first whose checksum is wrong, or None.

    Args:
        shape: of the blocks.
        blocks: uint8, whole blocks, contiguous on the CPU.
        first_block: number of the first block, for its checksum's seed.
    """
    num_blocks = blocks.numel() // shape.block_bytes
    _check_bytes("blocks", blocks, num_blocks * shape.block_bytes)
    bad = _core.find_bad_block(
        shape.block_bytes, shape.checksum_seed, blocks.data_ptr(), num_blocks, first_block
    )
    return None if bad < 0 else bad


def _check_bytes(name: str, tensor: torch.Tensor, num_bytes: int) -> None:
    is_plain = tensor.dtype == torch.uint8 and tensor.device.type == "cpu"
    if not is_plain or not tensor.is_contiguous() or tensor.numel() != num_bytes:
        raise ArgumentError(
            f"{name}: expected {num_bytes} contiguous bytes (uint8) on the CPU, got "
            f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
        )
