"""Write a small Qwen4-Exp checkpoint with random weights from a seed.

    python tools/make_model.py OUT --codec fp8

It is a checkpoint like the real ones: saved by transformers, an n-gram table in more than ten
shards, an indexed attention layer, several residual streams, and a byte-level tokenizer. The
weights are scaled so that the text depends on the table. fp8 and nvfp4 tables are quantised after
saving; the configuration says nothing about them, as in published checkpoints.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen4ExpConfig,
    Qwen4ExpForCausalLM,
    Qwen4ExpForConditionalGeneration,
    Qwen4ExpTextConfig,
)

from gramary.model.codecs import CODEC_NAMES, PLAIN_DTYPES, encode_rows

SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_ID = 256
TABLE_STD = 0.05

TEXT_CONFIG: dict[str, Any] = {
    "vocab_size": 256 + len(SPECIAL_TOKENS),
    "eos_token_id": EOS_TOKEN_ID,
    "pad_token_id": EOS_TOKEN_ID + 1,
    "max_position_embeddings": 8192,
    "hidden_size": 64,
    "hc_count": 4,
    "hc_lowrank": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 64,
    "indexer_compress_ratio": 4,
    "ple_embed_dim": 512,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 1100,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}

VISION_CONFIG: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": TEXT_CONFIG["hidden_size"],
    "num_position_embeddings": 16,
}


def make_model(
    path: str | Path,
    *,
    codec: str = "bf16",
    seed: int = 0,
    num_shards: int = 12,
    ple_layer_ids: Sequence[int] = (2,),
    conditional: bool = False,
    max_file_bytes: int = 1 << 40,
    scale_dtype: torch.dtype = torch.bfloat16,
    **config: Any,
) -> Path:
    """Writes a checkpoint into the folder `path` and returns it.

    Args:
        path: folder, made if it is missing.
        codec: encoding of the n-gram tables; the other weights are fp16 or fp32 beside a table of
            that dtype, else bf16.
        seed: equal seeds give equal weights, whatever the other options.
        num_shards: tensors each table is cut into.
        ple_layer_ids: one-based decoder layers with a table, none of them a multiple of four (those
            are attention layers).
        conditional: save the image-and-text class, whose text tensors lie under
            `model.language_model.`, instead of the text-only one.
        max_file_bytes: files are split below this size, with an index.
        scale_dtype: dtype of an fp8 table's scale, bfloat16 or float32.
        **config: text configuration fields that replace those of `TEXT_CONFIG`.
    """
    path = Path(path)
    text_config = Qwen4ExpTextConfig(
        **{
            **TEXT_CONFIG,
            "num_hidden_layers": -(-max(ple_layer_ids) // 4) * 4,
            "ple_layer_ids": list(ple_layer_ids),
            "split_ngram_parts": num_shards,
            **config,
        }
    )
    model = _build(text_config, conditional).to(PLAIN_DTYPES.get(codec, torch.bfloat16))
    _randomise(model, seed)
    model.save_pretrained(path)
    quantise_tables(path, codec, scale_dtype, max_file_bytes)
    make_tokenizer().save_pretrained(path)
    return path


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer whose ids 0..255 are bytes, followed by the special tokens."""
    vocab = {_byte_symbol(byte): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL_TOKENS[0],
        pad_token=SPECIAL_TOKENS[1],
        clean_up_tokenization_spaces=False,
    )


def _byte_symbol(byte: int) -> str:
    """The character that byte-level BPE writes for a byte (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(256 + [b for b in range(256) if b not in printable].index(byte))


def _build(text_config: Qwen4ExpTextConfig, conditional: bool) -> torch.nn.Module:
    if not conditional:
        return Qwen4ExpForCausalLM(text_config)
    vision_config = {**VISION_CONFIG, "out_hidden_size": text_config.hidden_size}
    config = Qwen4ExpConfig(text_config=text_config.to_dict(), vision_config=vision_config)
    return Qwen4ExpForConditionalGeneration(config)


@torch.no_grad()
def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Gives every parameter values that depend on its name and the seed alone."""
    for name, parameter in model.named_parameters():
        name = name.replace("model.language_model.", "model.")
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
        values = torch.randn(parameter.shape, generator=generator)
        if name.endswith("ngram_embedding.weight"):
            values *= TABLE_STD
        elif re.search(r"ple\.(key|value)_proj", name):
            values /= TABLE_STD * parameter.shape[1] ** 0.5
        elif name.endswith("dt_bias"):
            values.fill_(1.0)
        elif name.endswith("A_log"):
            values = (values.sigmoid() * 16).log()
        elif "norm" in name:
            values = values * 0.1 + ("linear_attn.norm" in name or "visual" in name)
        elif "embed_tokens" not in name:
            values /= max(1, parameter[0].numel()) ** 0.5
        parameter.copy_(values)


def quantise_tables(path: Path, codec: str, scale_dtype: torch.dtype, max_file_bytes: int) -> None:
    """Quantises the tables in `path`/model.safetensors and splits it into files, by name."""
    tensors = load_file(path / "model.safetensors")
    shards: dict[str, list[str]] = {}
    for name in tensors:
        if found := re.fullmatch(r"(.*\.ngram_embedding\.)shard_\d+\.weight", name):
            shards.setdefault(found[1], []).append(name)
    for table, names in shards.items() if codec not in PLAIN_DTYPES else ():
        top = max(float(tensors[name].abs().max()) for name in names)
        if codec == "fp8":
            scale = tensors[f"{table}weight_scale"] = torch.tensor(top / 448, dtype=scale_dtype)
        else:
            scale = tensors[f"{table}weight_scale_2"] = torch.tensor([top / (448 * 6)])
        for name in names:
            tensors.update(_quantise(name, tensors[name], codec, float(scale)))
    save_torch_state_dict(dict(sorted(tensors.items())), path, max_shard_size=max_file_bytes)


def _quantise(name: str, rows: torch.Tensor, codec: str, scale: float) -> dict[str, torch.Tensor]:
    """Returns the tensors that take the place of one shard."""
    encoded, _ = encode_rows(codec, rows.float(), scale=scale)
    if codec == "fp8":
        return {name: encoded.view(torch.float8_e4m3fn)}
    codes, block_scales = encoded.split((rows.shape[1] // 2, rows.shape[1] // 16), dim=1)
    return {
        name: codes.contiguous(),
        f"{name}_scale": block_scales.contiguous().view(torch.float8_e4m3fn),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Write a small Qwen4-Exp checkpoint.")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--codec", choices=CODEC_NAMES, default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-shards", type=int, default=12)
    parser.add_argument("--ple-layer-ids", type=int, nargs="+", default=[2], help="one-based")
    parser.add_argument("--conditional", action="store_true", help="the image-and-text class")
    parser.add_argument("--max-file-bytes", type=int, default=1 << 40)
    parser.add_argument("--ngram-vocab-size-base", type=int, default=1100, help="rows a head")
    options = vars(parser.parse_args(arguments))
    print(make_model(options.pop("out"), **options))


if __name__ == "__main__":
    main()
