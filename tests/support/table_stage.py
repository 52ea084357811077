"""Small tables with rows from a seed, and what reading them must give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gramary.model.codecs import PLAIN_DTYPES, Codec, decode_rows_ref, encode_rows
from gramary.model.hashing import HashSpec
from gramary.ops.hash import ngram_ids

CODECS = ("bf16", "fp16", "fp32", "fp8", "nvfp4")
# Where it lies, its encoded rows, and their codec.
Folder = tuple[Path, torch.Tensor, Codec]
OUTPUT_DTYPES = (None, torch.bfloat16, torch.float16, torch.float32, torch.uint8)


def small_spec(row_dim: int = 32, base: int = 300, rows_multiple: int = 128) -> HashSpec:
    """Returns a geometry of 4 heads and some 1,300 rows."""
    return HashSpec(
        vocab_size=500,
        eos_token_id=7,
        ngram_size=3,
        heads_per_ngram=2,
        row_dim=row_dim,
        ngram_vocab_size_base=base,
        rows_multiple=rows_multiple,
        decoder_layer=1,
    )


def encoded_table(spec: HashSpec, codec_name: str, seed: int = 0) -> tuple[torch.Tensor, Codec]:
    """Returns every row of a table, encoded uint8 [num_rows, row_bytes], and its codec."""
    generator = torch.Generator().manual_seed(seed)
    shape = (spec.num_rows, spec.row_dim)
    rows = torch.randn(shape, generator=generator, dtype=torch.float32)
    return encode_rows(codec_name, rows)


def expected_rows(
    codec: Codec,
    encoded: torch.Tensor,
    row_ids: torch.Tensor,
    dtype: torch.dtype | None = None,
    held: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Returns what a lookup must give: zero rows for -1 and for rows outside `held`."""
    first, end = held or (0, encoded.shape[0])
    ids = row_ids.to(torch.int64)
    is_held = (ids >= first) & (ids < end)
    rows = torch.zeros(*ids.shape, codec.row_bytes, dtype=torch.uint8)
    rows[is_held] = encoded[ids[is_held]]
    return decode_rows_ref(codec, rows, dtype)


def random_batch(
    spec: HashSpec, lengths: list[int], seed: int = 0, num_padding: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (token_ids, query_start_loc, history) of a ragged batch, with EOS here and there."""
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(lengths) + num_padding
    token_ids = torch.randint(0, spec.vocab_size, (num_tokens,), generator=generator)
    token_ids[torch.rand(num_tokens, generator=generator) < 0.1] = spec.eos_token_id
    starts = torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])
    shape = (len(lengths), spec.history_length)
    history = torch.randint(0, spec.vocab_size, shape, generator=generator)
    return token_ids, starts.to(torch.int32), history


def expected_embedding(
    spec: HashSpec,
    codec: Codec,
    encoded: torch.Tensor,
    batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    dtype: torch.dtype | None = None,
    held: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Returns what `embed` must give for a batch."""
    row_ids = ngram_ids(spec, *batch)
    return expected_rows(codec, encoded, row_ids, dtype, held).flatten(1)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns a result buffer filled with NaN (0xA5 for bytes), so that gaps show."""
    return torch.full(shape, 0xA5 if dtype == torch.uint8 else float("nan"), dtype=dtype)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Returns whether two tensors hold the same bytes."""
    return left.dtype == right.dtype and torch.equal(
        left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)
    )


def write_table_folder(
    path: Path,
    spec: HashSpec,
    encoded: torch.Tensor,
    codec: Codec,
    num_shards: int = 5,
    num_layers: int = 2,
) -> Path:
    """Writes a model folder that holds nothing but a PLE table, in the layout of Hugging Face."""
    prefix = "model.layers.1.ple.ple_embedding."
    each = -(-spec.num_rows // num_shards)
    tensors = {
        f"{prefix}layer_multipliers": torch.tensor(spec.multipliers),
        f"{prefix}ngram_heads_vocab_sizes": torch.tensor(spec.sizes),
        f"{prefix}ngram_heads_offsets": torch.tensor(spec.offsets),
    }
    scale = None if codec.scale is None else torch.tensor(codec.scale, dtype=torch.float32)
    if scale is not None:
        name = "weight_scale" if codec.name == "fp8" else "weight_scale_2"
        tensors[f"{prefix}ngram_embedding.{name}"] = scale
    for index in range(num_shards):
        rows = encoded[index * each : (index + 1) * each]
        name = f"{prefix}ngram_embedding.shard_{index}.weight"
        if codec.name == "nvfp4":
            tensors[name] = rows[:, : spec.row_dim // 2].contiguous()
            scales = rows[:, spec.row_dim // 2 :].contiguous()
            tensors[f"{name}_scale"] = scales.view(torch.float8_e4m3fn)
        else:
            own = PLAIN_DTYPES.get(codec.name, torch.float8_e4m3fn)
            tensors[name] = rows.contiguous().view(own)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors")
    config = {
        "model_type": "qwen4_exp_text",
        "num_hidden_layers": num_layers,
        "ple_layer_ids": [2],
        "vocab_size": spec.vocab_size,
        "eos_token_id": spec.eos_token_id,
        "ngram_size": spec.ngram_size,
        "heads_per_ngram": spec.heads_per_ngram,
        "hidden_size": spec.embed_dim,
        "ple_embed_dim": spec.embed_dim,
        "ngram_vocab_size_base": spec.ngram_vocab_size_base,
        "make_ngram_vocab_size_divisible_by": spec.rows_multiple,
        "split_ngram_parts": num_shards,
        "seed": spec.seed,
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


def write_table_folders(factory: pytest.TempPathFactory, spec: HashSpec) -> dict[str, Folder]:
    """Writes a model folder of random rows for each codec; returns them by the codec's name."""
    made = {}
    for name in CODECS:
        encoded, codec = encoded_table(spec, name)
        path = write_table_folder(factory.mktemp(name), spec, encoded, codec)
        made[name] = (path, encoded, codec)
    return made
