"""Small tables in files, as they come: model folders of every shape, and packs."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROW_DIM = 16
CODECS = ("bf16", "fp16", "fp32", "fp8", "nvfp4")
DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "fp8": "F8_E4M3", "nvfp4": "U8"}
ROW_BYTES = {"bf16": 32, "fp16": 32, "fp32": 64, "fp8": 16, "nvfp4": 9}
CONFIG: dict[str, Any] = {
    "model_type": "qwen4_exp_text",
    "num_hidden_layers": 4,
    "ple_layer_ids": [2],
    "vocab_size": 97,
    "eos_token_id": 5,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "hidden_size": 4 * ROW_DIM,
    "ple_embed_dim": 4 * ROW_DIM,
    "ngram_vocab_size_base": 60,
    "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 5,
    "seed": 1234,
}

# A tensor: dtype, shape, bytes.
Tensor = tuple[str, list[int], bytes]


@dataclasses.dataclass(frozen=True)
class Seed:
    """Files that are right, by path in their folder; a `str` is the target of a symbolic link.

    `path` is what is opened: "" for the folder, else the pack's name.
    """

    name: str
    files: Mapping[str, bytes | str]
    path: str = ""


def write_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Returns a safetensors file, written here from the format's own description."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def table_tensors(codec: str, layer: int, constants: Any, prefix: str, parts: int) -> Any:
    """Returns the tensors of a random table with finite values."""
    start = f"{prefix}layers.{layer - 1}.ple.ple_embedding."
    random = np.random.default_rng(layer)
    tensors: dict[str, Tensor] = {}
    for name, values in constants.buffers.items():
        tensors[start + name] = ("I64", [len(values)], np.array(values, np.int64).tobytes())
    if codec in ("fp8", "nvfp4"):
        name = "weight_scale" if codec == "fp8" else "weight_scale_2"
        shape = [] if codec == "fp8" else [1]
        tensors[f"{start}ngram_embedding.{name}"] = ("F32", shape, struct.pack("<f", 0.125))
    each = -(-constants.num_rows // parts)
    for index in range(parts):
        rows = min(each, constants.num_rows - index * each)
        name = f"{start}ngram_embedding.shard_{index}.weight"
        if codec == "nvfp4":
            codes = random.integers(0, 256, (rows, ROW_DIM // 2), np.uint8)
            scales = random.integers(1, 0x7E, (rows, 1), np.uint8)
            tensors[name] = ("U8", [rows, ROW_DIM // 2], codes.tobytes())
            tensors[f"{name}_scale"] = ("F8_E4M3", [rows, 1], scales.tobytes())
            continue
        values = random.standard_normal((rows, ROW_DIM)).astype(np.float32)
        content = {
            "bf16": lambda v: (v.view(np.uint32) >> 16).astype(np.uint16),
            "fp16": lambda v: v.astype(np.float16),
            "fp32": lambda v: v,
            "fp8": lambda v: random.integers(0, 0x7F, v.shape, np.uint8),
        }[codec](values)
        tensors[name] = (DTYPES[codec], [rows, ROW_DIM], content.tobytes())
    return tensors


def _folder(config: Mapping[str, Any], files: Mapping[str, bytes | str]) -> dict[str, Any]:
    return {"config.json": json.dumps(config).encode(), **files}


@cache
def model_seeds() -> tuple[Seed, ...]:
    """Returns model folders: one file, two with and without an index, two tables, a hub cache."""
    from tools.fuzzing.truth import hash_constants

    constants = hash_constants(CONFIG, 0)
    text, language = "model.", "model.language_model."
    other: dict[str, Tensor] = {
        "model.norm.weight": ("F32", [4], bytes(16)),
        "model.layers.1.ple.ple_embedding.token_lookup": ("I64", [2], bytes(16)),
        "model.layers.1.ple.key_proj.weight": ("BF16", [2, 2], bytes(8)),
    }
    one = write_safetensors({**other, **table_tensors("fp8", 2, constants, text, 5)})
    split = table_tensors("nvfp4", 2, constants, text, 3)
    names = list(split)
    pair = [dict.fromkeys(names[:6]), dict.fromkeys(names[6:])]
    files = {
        f"model-0000{i + 1}-of-00002.safetensors": write_safetensors({n: split[n] for n in part})
        for i, part in enumerate(pair)
    }
    weight_map = {n: f"model-0000{i + 1}-of-00002.safetensors" for i in (0, 1) for n in pair[i]}
    index = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    wide = table_tensors("bf16", 2, constants, language, 11)
    halves = list(wide)
    nested = {"model_type": "qwen4_exp", "text_config": CONFIG}
    two = {**CONFIG, "ple_layer_ids": [3, 2], "eos_token_id": [5, 6], "ple_embed_dim": None}
    both = {
        **table_tensors("fp32", 2, hash_constants(two, 0), text, 2),
        **table_tensors("fp32", 3, hash_constants(two, 1), text, 1),
    }
    half = write_safetensors(table_tensors("fp16", 2, constants, text, 4))
    return (
        Seed("one file", _folder(CONFIG, {"model.safetensors": one})),
        Seed("index", _folder(CONFIG, {"model.safetensors.index.json": index, **files})),
        Seed(
            "no index",
            _folder(
                nested,
                {
                    "a.safetensors": write_safetensors({n: wide[n] for n in halves[:7]}),
                    "b.safetensors": write_safetensors({n: wide[n] for n in halves[7:]}),
                },
            ),
        ),
        Seed("two tables", _folder(two, {"model.safetensors": write_safetensors(both)})),
        Seed("cache", _folder(CONFIG, {"blob": half, "model.safetensors": "blob"})),
    )


@cache
def pack_seed(codec: str) -> Seed:
    """Returns the pack of a small table in its own codec."""
    import tempfile

    from gramary.files.pack import build_pack
    from gramary.files.source import open_source
    from tools.fuzzing.truth import hash_constants

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        tensors = table_tensors(codec, 2, hash_constants(CONFIG, 0), "model.", 3)
        (model / "config.json").write_text(json.dumps(CONFIG))
        (model / "model.safetensors").write_bytes(write_safetensors(tensors))
        build_pack(open_source(model), Path(folder) / "table.pack")
        return Seed(
            f"pack {codec}",
            {"table.pack": (Path(folder) / "table.pack").read_bytes()},
            "table.pack",
        )


@cache
def all_seeds() -> tuple[Seed, ...]:
    """Returns every seed."""
    return (*model_seeds(), *(pack_seed(codec) for codec in CODECS))
