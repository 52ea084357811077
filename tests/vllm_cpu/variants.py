"""Variants of models/tiny that vLLM runs on a CPU.

vLLM's CPU kernel of the linear-attention layers takes heads of 128 values and a gate; models/tiny
has heads of 32 and none, so those weights are drawn again, from seeds. Its indexer, which vLLM
runs on GPUs only and which selects everything for prompts as short as here, is left out.
"""

import json
import shutil
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"
HEAD_DIM = 128

# What makes the variants differ: "fp8" has the table of models/tiny; in "bf16" its rows are
# decoded; "stages" has twice the layers, so that both of two pipeline stages hold an attention
# layer, which vLLM demands; "drafts" has a layer that proposes tokens (MTP).
VARIANTS = ("fp8", "bf16", "stages", "drafts")


def write_variant(name: str, folder: Path) -> Path:
    """Writes the variant into the folder, and returns it: equal bytes each time."""
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    weights = load_file(TINY / "model.safetensors")
    weights = {key: weight for key, weight in weights.items() if ".indexer." not in key}
    config.update(
        linear_key_head_dim=HEAD_DIM,
        linear_value_head_dim=HEAD_DIM,
        output_gate_type="silu",
        **dict.fromkeys(name for name in config if name.startswith("indexer_")),
        ple_embedding_dtype="float8_e4m3fn",
    )
    _widen_linear_attention(weights, config)
    if name == "bf16":
        _decode_table(weights)
        config["ple_embedding_dtype"] = "bfloat16"
    elif name == "stages":
        _repeat_layers(weights, config)
    elif name == "drafts":
        _add_draft_layer(weights, config)
    elif name != "fp8":
        raise ValueError(f"variant {name!r}: expected one of {VARIANTS}")
    folder.mkdir(parents=True, exist_ok=True)
    for source in TINY.iterdir():
        if source.name not in ("config.json", "model.safetensors", "README.md"):
            shutil.copy(source, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    contiguous = {key: weight.contiguous() for key, weight in weights.items()}
    save_file(contiguous, folder / "model.safetensors", {"format": "pt"})
    return folder


def _draw(name: str, *shape: int, scale: float = 0.05) -> Tensor:
    """Returns normal values that depend on the name and the shape only."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return (torch.randn(shape, generator=generator) * scale).to(torch.bfloat16)


def _widen_linear_attention(weights: dict[str, Tensor], config: dict[str, int]) -> None:
    keys = config["linear_num_key_heads"] * HEAD_DIM
    values = config["linear_num_value_heads"] * HEAD_DIM
    hidden, kernel = config["hidden_size"], config["linear_conv_kernel_dim"]
    shapes = {
        "linear_attn.in_proj_qkv.weight": (2 * keys + values, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, kernel),
        "linear_attn.out_proj.weight": (hidden, values),
    }
    for name in weights:
        if name.endswith("linear_attn.norm.weight"):
            weights[name] = torch.ones(HEAD_DIM, dtype=torch.bfloat16)
        for ending, shape in shapes.items():
            if name.endswith(ending):
                weights[name] = _draw(name, *shape)


def _decode_table(weights: dict[str, Tensor]) -> None:
    for name in [name for name in weights if name.endswith("ngram_embedding.weight_scale")]:
        scale = weights.pop(name)
        shards = name.removesuffix("weight_scale") + "shard_"
        for shard in [key for key in weights if key.startswith(shards)]:
            weights[shard] = (weights[shard].float() * scale).to(torch.bfloat16)


def _repeat_layers(weights: dict[str, Tensor], config: dict[str, object]) -> None:
    """Adds the layers once more, without the table."""
    types = config["layer_types"]
    assert isinstance(types, list)
    number = len(types)
    for name in list(weights):
        if name.startswith("model.layers.") and ".ple." not in name:
            index, rest = name.removeprefix("model.layers.").split(".", 1)
            weights[f"model.layers.{int(index) + number}.{rest}"] = weights[name].clone()
    config.update(num_hidden_layers=2 * number, layer_types=2 * types)


def _add_draft_layer(weights: dict[str, Tensor], config: dict[str, object]) -> None:
    """Adds a layer that proposes tokens; it was never trained, so that most are rejected."""
    last = len(config["layer_types"]) - 1  # type: ignore[arg-type]
    hidden, streams = config["hidden_size"], config["hc_count"]
    assert isinstance(hidden, int)
    assert isinstance(streams, int)
    for name in list(weights):
        if name.startswith(f"model.layers.{last}."):
            weights[name.replace(f"model.layers.{last}.", "mtp.layers.0.")] = weights[name].clone()
        if name.startswith("model.hyper_connection_mixer."):
            weights[name.replace("model.", "mtp.")] = weights[name].clone()
    for name in ("mtp.fc_embedding.weight", "mtp.fc_hidden.weight"):
        weights[name] = _draw(name, hidden, hidden)
    weights["mtp.pre_fc_norm_embedding.weight"] = torch.zeros(hidden, dtype=torch.bfloat16)
    weights["mtp.pre_fc_norm_hidden.weight"] = torch.zeros(hidden * streams, dtype=torch.bfloat16)
    config["mtp_num_hidden_layers"] = 1
