"""The published geometry, in a sparse file: 320 million rows without their disk space."""

import json
import os
import struct

import pytest
import torch
from abilities import ask_for

from gramary.files.checkpoint import open_checkpoint
from gramary.files.stream import read_rows
from gramary.model.hashing import HashSpec

TABLE = "model.language_model.layers.1.ple.ple_embedding."
ROW_DIM = 160
NUM_SHARDS = 128
TEXT_CONFIG = {
    "vocab_size": 248320,
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ple_layer_ids": [2],
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "eos_token_id": [248044, 248046],
}


@pytest.fixture
def real_checkpoint(tmp_path):
    """An fp8 checkpoint of the real size whose rows are holes; the shards lie in order of names."""
    ask_for("sparse_files")
    (tmp_path / "config.json").write_text(json.dumps({"text_config": TEXT_CONFIG}))
    spec = HashSpec.from_config(tmp_path)
    rows_each = -(-spec.num_rows // NUM_SHARDS)
    buffers = {
        "layer_multipliers": spec.multipliers,
        "ngram_heads_vocab_sizes": spec.sizes,
        "ngram_heads_offsets": spec.offsets,
    }
    header, offset, data = {}, 0, b""

    def add(name, dtype, shape, nbytes):
        nonlocal offset
        header[TABLE + name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [offset, offset + nbytes],
        }
        offset += nbytes

    for name, values in buffers.items():
        add(name, "I64", [len(values)], 8 * len(values))
        data += struct.pack(f"<{len(values)}q", *values)
    add("ngram_embedding.weight_scale", "F32", [], 4)
    data += struct.pack("<f", 2.0e-4)
    for number in sorted(range(NUM_SHARDS), key=str):
        rows = min(rows_each, spec.num_rows - number * rows_each)
        name = f"ngram_embedding.shard_{number}.weight"
        add(name, "F8_E4M3", [rows, ROW_DIM], rows * ROW_DIM)
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    os.truncate(path, 8 + len(text) + offset)
    starts = {
        number: 8
        + len(text)
        + header[f"{TABLE}ngram_embedding.shard_{number}.weight"]["data_offsets"][0]
        for number in range(NUM_SHARDS)
    }
    return tmp_path, spec, rows_each, starts


@pytest.mark.behaviour(2, 27)
def test_rows_beyond_2_to_the_32_bytes_are_the_right_ones(real_checkpoint):
    """Behaviours 2 and 27: no storage for 48 GiB, and offsets beyond 2^31 and 2^32 are right."""
    folder, spec, rows_each, starts = real_checkpoint
    source = open_checkpoint(folder)
    assert source.layout.num_rows == 320_001_536
    assert source.layout.nbytes == 51_200_245_760
    wanted = [0, 2**31 // ROW_DIM, 2**31 // ROW_DIM + 1, 2**32 // ROW_DIM + 1, spec.num_rows - 1]
    wanted += [rows_each - 1, rows_each, 2 * rows_each, 127 * rows_each]
    with open(folder / "model.safetensors", "r+b") as file:
        for row in wanted:
            shard, index = divmod(row, rows_each)
            file.seek(starts[shard] + index * ROW_DIM)
            file.write(row.to_bytes(8, "little"))
    source = open_checkpoint(folder)
    out = torch.empty(1, ROW_DIM, dtype=torch.uint8)
    for row in wanted:
        read_rows(source.layout, row, 1, out)
        assert int.from_bytes(out[0, :8].numpy().tobytes(), "little") == row
        assert not out[0, 8:].any()
