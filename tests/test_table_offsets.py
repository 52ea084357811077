"""Rows beyond 2^31 and 2^32, in bytes and in elements, on sparse memory and a sparse file."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from abilities import READERS
from table_stage import encoded_table, same_bits, small_spec, write_table_folder

from gramary import Table
from gramary.errors import ChecksumError
from gramary.files.pack import PackHeader, SourceIdentity
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.native.blocks import pack_blocks
from gramary.settings import Settings

# 320 bytes and 160 elements a row: 2^32 elements end in row 26,843,545.
SPEC = HashSpec(
    vocab_size=500,
    eos_token_id=7,
    ngram_size=3,
    heads_per_ngram=2,
    row_dim=160,
    ngram_vocab_size_base=6_800_000,
    rows_multiple=128,
    decoder_layer=1,
)
CODEC = Codec("bf16", 160)
# The memory is not populated, so that only the pages written are taken.
SPARSE = Settings(huge_pages=False, memory_limit_bytes=1 << 40)


def rows_around_the_borders(row_bytes: int, row_elements: int) -> torch.Tensor:
    """Returns the rows that hold the byte and element offsets 2^31 and 2^32, and neighbours."""
    rows = {0, 1, SPEC.num_rows - 2, SPEC.num_rows - 1}
    for border in (2**31, 2**32):
        for size in (row_bytes, row_elements):
            rows |= {border // size + step for step in (-1, 0, 1)}
    return torch.tensor(sorted(row for row in rows if row < SPEC.num_rows))


ROW_IDS = rows_around_the_borders(CODEC.row_bytes, CODEC.row_dim)


def encoded_rows(row_ids: torch.Tensor) -> torch.Tensor:
    """Returns each row as its own number, over and over."""
    numbers = row_ids.to(torch.int64).view(-1, 1).expand(-1, CODEC.row_bytes // 8)
    return numbers.contiguous().view(torch.uint8).view(row_ids.numel(), CODEC.row_bytes)


@pytest.mark.behaviour(27)
def test_host_rows_beyond_the_borders() -> None:
    """Behaviour 27: row offsets beyond 2^31 and 2^32 bytes and elements are right."""
    assert int(ROW_IDS[-1]) * CODEC.row_dim > 2**32
    with Table.empty(SPEC, CODEC, settings=SPARSE) as table:
        table.materialize()
        [tier] = table.tiers
        for row_id in ROW_IDS.tolist():
            tier.write(row_id, encoded_rows(torch.tensor([row_id])))
        asked = torch.cat([ROW_IDS, (ROW_IDS - 2).clamp(min=0), torch.tensor([-1])])
        is_written = torch.isin(asked, ROW_IDS)
        rows = table.lookup(asked, dtype=torch.uint8)
        assert same_bits(rows[is_written], encoded_rows(asked[is_written]))
        assert not rows[~is_written].any()
        decoded = table.lookup(ROW_IDS)
        assert same_bits(decoded, encoded_rows(ROW_IDS).view(torch.bfloat16))


@pytest.mark.behaviour(27)
def test_disk_rows_beyond_the_borders(tmp_path: Path) -> None:
    """Behaviour 27: the same for rows in a file."""
    folder = write_sparse_folder(tmp_path)
    with Table.open(folder, placement="disk", settings=SPARSE) as table:
        assert table.spec == SPEC
        rows = table.lookup(ROW_IDS, dtype=torch.uint8)
        assert same_bits(rows, encoded_rows(ROW_IDS))


@pytest.mark.behaviour(27)
@pytest.mark.parametrize("reader", READERS)
def test_pack_rows_beyond_the_borders(tmp_path: Path, reader: str) -> None:
    """Behaviour 27: the same for blocks of a pack, each checked by the number that it has there."""
    path, row_ids = write_sparse_pack(tmp_path / "table.pack")
    settings = Settings(disk_reader=reader)
    with Table.open(path, placement="disk", settings=settings) as table:
        assert table.spec == SPEC
        for asked in (row_ids, row_ids.repeat(100)):
            rows = table.lookup(asked, dtype=torch.uint8)
            assert same_bits(rows, encoded_rows(asked))
        # A block that was never written is none of this table's.
        with pytest.raises(ChecksumError, match="was altered"):
            table.lookup(torch.tensor([SPEC.num_rows // 3]))


def write_sparse_pack(path: Path) -> tuple[Path, torch.Tensor]:
    """Writes a pack that holds only the blocks of the rows at the borders; returns their rows."""
    header = PackHeader(SPEC, CODEC, SourceIdentity("0" * 32, "bf16", None), "a test")
    geometry, shape = header.geometry, header.block_shape
    assert geometry.file_bytes > 2**32
    written = []
    with open(path, "wb") as file:
        file.write(header.to_bytes())
        file.truncate(geometry.file_bytes)
        for block in {row // geometry.rows_per_block for row in ROW_IDS.tolist()}:
            first_row = block * geometry.rows_per_block
            end_row = min(first_row + geometry.rows_per_block, geometry.num_rows)
            written.append(torch.arange(first_row, end_row))
            data = torch.empty(geometry.block_bytes, dtype=torch.uint8)
            pack_blocks(shape, encoded_rows(written[-1]), geometry.first_block + block, data)
            os.pwrite(file.fileno(), data.numpy().tobytes(), geometry.offset_of(block))
    return path, torch.cat(written)


def write_sparse_folder(path: Path) -> Path:
    """Writes a checkpoint of one sparse shard that holds only the rows at the borders."""
    spec = small_spec()
    encoded, codec = encoded_table(spec, "bf16")
    write_table_folder(path, spec, encoded, codec, num_shards=1)
    config = json.loads((path / "config.json").read_text())
    config |= {"hidden_size": 640, "ple_embed_dim": 640, "ngram_vocab_size_base": 6_800_000}
    (path / "config.json").write_text(json.dumps(config))
    prefix = "model.layers.1.ple.ple_embedding."
    buffers = {
        "layer_multipliers": SPEC.multipliers,
        "ngram_heads_vocab_sizes": SPEC.sizes,
        "ngram_heads_offsets": SPEC.offsets,
    }
    header, at, payload = {}, 0, b""
    for name, values in buffers.items():
        data = struct.pack(f"<{len(values)}q", *values)
        header[prefix + name] = {
            "dtype": "I64", "shape": [len(values)], "data_offsets": [at, at + len(data)],
        }  # fmt: skip
        at, payload = at + len(data), payload + data
    table_bytes = SPEC.num_rows * CODEC.row_bytes
    header[prefix + "ngram_embedding.shard_0.weight"] = {
        "dtype": "BF16", "shape": [SPEC.num_rows, 160], "data_offsets": [at, at + table_bytes],
    }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    with open(path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + payload)
        file.truncate(start + at + table_bytes)
        for row_id in ROW_IDS.tolist():
            row = encoded_rows(torch.tensor([row_id])).numpy().tobytes()
            os.pwrite(file.fileno(), row, start + at + row_id * CODEC.row_bytes)
    return path
