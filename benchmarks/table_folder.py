"""A model's folder that holds an fp8 table of the published width and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.gpu_full_table import full_spec, rows_by_formula
from gramary import HashSpec

PREFIX = "model.layers.1.ple.ple_embedding."
SCALE = 2.0**-4

# No code may be NaN (0x7F and 0xFF): what is computed from the rows has to tell them apart.
FINITE = 0xB7


def write_table_folder(path: Path, base: int, *, num_shards: int, device: str) -> Path:
    """Writes `model.safetensors` and `config.json` of rows by a formula; returns the folder.

    Args:
        path: the folder, which exists.
        base: rows of each of the 16 heads, about.
        num_shards: parts of the table.
        device: where the rows are made.
    """
    spec = full_spec(base)
    tensors = {
        f"{PREFIX}layer_multipliers": torch.tensor(spec.multipliers),
        f"{PREFIX}ngram_heads_vocab_sizes": torch.tensor(spec.sizes),
        f"{PREFIX}ngram_heads_offsets": torch.tensor(spec.offsets),
        f"{PREFIX}ngram_embedding.weight_scale": torch.tensor(SCALE),
    }
    each = -(-spec.num_rows // num_shards)
    for index in range(num_shards):
        end = min((index + 1) * each, spec.num_rows)
        rows = rows_by_formula(torch.arange(index * each, end, device=device))
        rows = rows.bitwise_and_(FINITE).cpu().view(torch.float8_e4m3fn)
        tensors[f"{PREFIX}ngram_embedding.shard_{index}.weight"] = rows
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(_config(spec, base, num_shards)))
    return path


def _config(spec: HashSpec, base: int, num_shards: int) -> dict[str, Any]:
    return {
        "model_type": "qwen4_exp_text", "num_hidden_layers": 2, "ple_layer_ids": [spec.layer_id],
        "vocab_size": spec.vocab_size, "eos_token_id": spec.eos_token_id,
        "ngram_size": spec.ngram_size, "heads_per_ngram": spec.heads_per_ngram,
        "hidden_size": spec.embed_dim, "ple_embed_dim": spec.embed_dim,
        "ngram_vocab_size_base": base, "seed": spec.seed, "split_ngram_parts": num_shards,
        "make_ngram_vocab_size_divisible_by": spec.rows_multiple,
    }  # fmt: skip
