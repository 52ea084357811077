"""A model's folder that holds an fp8 table and nothing else, and rows for one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.gpu_full_table import rows_by_formula
from gramary import HashSpec

# No code may be NaN (0x7F and 0xFF): what is computed from the rows has to tell them apart.
FINITE = 0xB7
SCALE = 2.0**-4


def write_table_folder(
    path: Path, spec: HashSpec, shards: Sequence[torch.Tensor], scale: float = SCALE
) -> Path:
    """Writes `model.safetensors` and `config.json` of an fp8 table; returns the folder.

    Args:
        path: the folder, which exists.
        spec: geometry of the table.
        shards: encoded rows, uint8 [n, row_dim] each, in order.
        scale: the table's.
    """
    tensors = {
        "layer_multipliers": torch.tensor(spec.multipliers),
        "ngram_heads_vocab_sizes": torch.tensor(spec.sizes),
        "ngram_heads_offsets": torch.tensor(spec.offsets),
        "ngram_embedding.weight_scale": torch.tensor(scale),
    }
    for index, rows in enumerate(shards):
        codes = rows.cpu().contiguous().view(torch.float8_e4m3fn)
        tensors[f"ngram_embedding.shard_{index}.weight"] = codes
    prefix = f"model.layers.{spec.decoder_layer}.ple.ple_embedding."
    named = {prefix + name: tensor for name, tensor in tensors.items()}
    save_file(named, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(_config(spec, len(shards))))
    return path


def formula_shards(spec: HashSpec, num_shards: int, device: str) -> list[torch.Tensor]:
    """Returns encoded rows on the CPU, made on a device; no two are alike, and all are finite."""
    each = -(-spec.num_rows // num_shards)
    bounds = [(i * each, min((i + 1) * each, spec.num_rows)) for i in range(num_shards)]
    return [
        rows_by_formula(torch.arange(first, end, device=device)).bitwise_and_(FINITE).cpu()
        for first, end in bounds
    ]


def _config(spec: HashSpec, num_shards: int) -> dict[str, Any]:
    return {
        "model_type": "qwen4_exp_text", "num_hidden_layers": spec.decoder_layer + 1,
        "ple_layer_ids": [spec.decoder_layer + 1],
        "vocab_size": spec.vocab_size, "eos_token_id": spec.eos_token_id,
        "ngram_size": spec.ngram_size, "heads_per_ngram": spec.heads_per_ngram,
        "hidden_size": spec.embed_dim, "ple_embed_dim": spec.embed_dim,
        "ngram_vocab_size_base": spec.ngram_vocab_size_base, "seed": spec.seed,
        "split_ngram_parts": num_shards,
        "make_ngram_vocab_size_divisible_by": spec.rows_multiple,
    }  # fmt: skip
