"""Blocks and their checksums, against the xxhash package and a plain construction."""

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gramary.errors import ArgumentError
from gramary.native.blocks import BlockShape, find_bad_block, pack_blocks, xxh64

SEEDS = st.integers(0, 2**64 - 1)


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0).byte()


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300), SEEDS)
def test_xxh64_equals_the_package(data: bytes, seed: int) -> None:
    assert xxh64(as_tensor(data), seed) == xxhash.xxh64_intdigest(data, seed)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8, 31, 32, 33, 63, 64, 4088, 100_003])
def test_xxh64_at_every_length_of_tail(size: int) -> None:
    data = bytes(i * 37 % 256 for i in range(size))
    assert xxh64(as_tensor(data)) == xxhash.xxh64_intdigest(data)


def test_xxh64_of_the_specification() -> None:
    """The digest of nothing with seed 0, as the reference implementation prints it."""
    assert xxh64(torch.empty(0, dtype=torch.uint8)) == 0xEF46DB3751D8E999


def plain_blocks(shape: BlockShape, rows: torch.Tensor, first_block: int) -> bytes:
    data = b""
    for b in range(shape.num_blocks(len(rows))):
        part = rows[b * shape.rows_per_block : (b + 1) * shape.rows_per_block]
        body = part.numpy().tobytes().ljust(shape.block_bytes - 8, b"\0")
        seed = (shape.checksum_seed + first_block + b) % 2**64
        data += body + xxhash.xxh64_intdigest(body, seed).to_bytes(8, "little")
    return data


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("num_blocks", [*range(1, 12), 16, 17])
@pytest.mark.parametrize("block_bytes", [16, 32, 40, 48, 512, 4096])
def test_groups_of_blocks_have_the_digests_of_each(num_blocks: int, block_bytes: int) -> None:
    """Blocks are digested several at once; each count of them, whole groups and rests."""
    shape = BlockShape(block_bytes - 8, 1, block_bytes, 2**64 - 5)
    rows = torch.randint(0, 256, (num_blocks, shape.row_bytes), dtype=torch.uint8)
    blocks = torch.empty(num_blocks * block_bytes, dtype=torch.uint8)
    pack_blocks(shape, rows, 3, blocks)
    assert blocks.numpy().tobytes() == plain_blocks(shape, rows, 3)
    for bad in range(num_blocks):
        spoilt = blocks.clone()
        spoilt[bad * block_bytes + shape.row_bytes - 1] ^= 1
        assert find_bad_block(shape, spoilt, 3) == bad


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("num_rows", [1, 24, 25, 26, 1000, 5000])
@pytest.mark.parametrize("seed", [0, 2**64 - 2])
def test_pack_blocks_equals_the_plain_construction(num_rows: int, seed: int) -> None:
    shape = BlockShape(160, 25, 4096, seed)
    rows = torch.randint(0, 256, (num_rows, 160), dtype=torch.uint8)
    blocks = torch.full((shape.num_blocks(num_rows) * 4096,), 0xA5, dtype=torch.uint8)
    pack_blocks(shape, rows, 7, blocks)
    assert blocks.numpy().tobytes() == plain_blocks(shape, rows, 7)
    assert find_bad_block(shape, blocks, 7) is None


@pytest.mark.usefixtures("simd_level")
@pytest.mark.behaviour(29)
def test_the_first_bad_block_is_found() -> None:
    """Behaviour 29: one bit, a moved block, another table's block: each fails its checksum."""
    shape = BlockShape(160, 25, 4096, 11)
    rows = torch.randint(0, 256, (25 * 300, 160), dtype=torch.uint8)
    blocks = torch.empty(300 * 4096, dtype=torch.uint8)
    pack_blocks(shape, rows, 0, blocks)
    for position in (0, 4087, 4088, 4095, 250 * 4096 + 4050):
        spoilt = blocks.clone()
        spoilt[position] ^= 16
        spoilt[299 * 4096] ^= 1
        assert find_bad_block(shape, spoilt, 0) == position // 4096
    swapped = torch.cat([blocks[4096:8192], blocks[:4096]])
    assert find_bad_block(shape, swapped, 0) == 0
    assert find_bad_block(shape, blocks, 1) == 0
    assert find_bad_block(BlockShape(160, 25, 4096, 12), blocks, 0) == 0
    assert find_bad_block(shape, torch.zeros(4096, dtype=torch.uint8), 0) == 0


def test_wrong_sizes_are_refused() -> None:
    shape = BlockShape(160, 25, 4096, 0)
    rows = torch.zeros(26, 160, dtype=torch.uint8)
    with pytest.raises(ArgumentError, match="blocks: expected 8192"):
        pack_blocks(shape, rows, 0, torch.zeros(4096, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match="rows"):
        pack_blocks(shape, rows.float(), 0, torch.zeros(8192, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match="blocks"):
        find_bad_block(shape, torch.zeros(4097, dtype=torch.uint8), 0)
