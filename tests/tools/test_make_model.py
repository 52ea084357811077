"""The tool that writes small checkpoints."""

import hashlib
import json
import re
from pathlib import Path

import make_model
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from gramary.model.codecs import Codec, decode_rows_ref, join_nvfp4

TABLE = "model.layers.1.ple.ple_embedding.ngram_embedding."
TEXT = "One morning – the table woke, and wrote: 日本語.\n"


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            tensors.update({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
    return tensors


def digest(folder: Path) -> str:
    files = sorted(folder.iterdir())
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def table_shards(tensors: dict[str, torch.Tensor], suffix: str) -> list[torch.Tensor]:
    names = [name for name in tensors if re.fullmatch(rf".*\.shard_\d+\.{suffix}", name)]
    names.sort(key=lambda name: int(re.search(r"shard_(\d+)", name)[1]))
    return [tensors[name] for name in names]


def greedy(model, text: str) -> list[int]:
    ids = torch.tensor([list(text.encode())])
    return model.generate(ids, max_new_tokens=12, do_sample=False)[0].tolist()


def test_equal_seeds_give_equal_files(tmp_path):
    first = make_model.make_model(tmp_path / "a", codec="fp8", seed=3)
    again = make_model.make_model(tmp_path / "b", codec="fp8", seed=3)
    other = make_model.make_model(tmp_path / "c", codec="fp8", seed=4)
    assert digest(first) == digest(again) != digest(other)
    assert sum(file.stat().st_size for file in first.iterdir()) < 4 << 20


@pytest.mark.parametrize("conditional", [False, True])
def test_it_loads_and_its_text_depends_on_the_table(make_checkpoint, conditional):
    folder = make_checkpoint(conditional=conditional)
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = greedy(model, TEXT)
    table = next(m for n, m in model.named_modules() if n.endswith("ngram_embedding"))
    table.weight.data.copy_(table.weight.data.roll(1, 0))
    assert greedy(model, TEXT) != expected


def test_both_classes_have_the_same_text_weights(make_checkpoint):
    text = read_tensors(make_checkpoint())
    conditional = read_tensors(make_checkpoint(conditional=True))
    assert any(name.startswith("model.visual.") for name in conditional)
    for name, tensor in text.items():
        prefixed = re.sub(r"^model\.", "model.language_model.", name)
        assert torch.equal(conditional[prefixed], tensor), name


def test_the_tokenizer_is_bytes(make_checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(make_checkpoint())
    ids = tokenizer(TEXT)["input_ids"]
    assert ids == list(TEXT.encode())
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.eos_token_id == make_model.EOS_TOKEN_ID
    assert len(tokenizer) == make_model.TEXT_CONFIG["vocab_size"]
    assert tokenizer("<|endoftext|>")["input_ids"] == [make_model.EOS_TOKEN_ID]


@pytest.mark.parametrize("codec", ["fp8", "nvfp4"])
def test_quantised_tables_hold_the_plain_one(make_checkpoint, codec):
    plain = read_tensors(make_checkpoint())
    tensors = read_tensors(make_checkpoint(codec=codec))
    shards = table_shards(tensors, "weight")
    rows = torch.cat(table_shards(plain, "weight")).float()
    if codec == "fp8":
        scale = tensors[f"{TABLE}weight_scale"]
        assert scale.shape == ()
        assert scale.dtype == torch.bfloat16
        assert all(shard.dtype == torch.float8_e4m3fn for shard in shards)
        encoded = torch.cat([shard.view(torch.uint8) for shard in shards])
    else:
        scale = tensors[f"{TABLE}weight_scale_2"]
        assert scale.dtype == torch.float32
        block_scales = table_shards(tensors, "weight_scale")
        assert all(each.dtype == torch.float8_e4m3fn for each in block_scales)
        encoded = join_nvfp4(torch.cat(shards), torch.cat(block_scales).view(torch.uint8))
    assert len(shards) == 12
    decoded = decode_rows_ref(Codec(codec, rows.shape[1], float(scale)), encoded, torch.float32)
    error = (decoded - rows).abs().amax(1) / rows.abs().amax(1)
    assert error.max() < {"fp8": 2**-4, "nvfp4": 0.2}[codec]
    others = [name for name in plain if ".ngram_embedding." not in name]
    assert all(torch.equal(tensors[name], plain[name]) for name in others)


def test_small_files_are_indexed(make_checkpoint):
    folder = make_checkpoint(codec="nvfp4", max_file_bytes=300_000)
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(weight_map.values())) > 2
    for file in set(weight_map.values()):
        with safe_open(folder / file, "pt") as opened:
            assert {name for name, at in weight_map.items() if at == file} == set(opened.keys())


def test_several_tables_and_the_command_line(tmp_path):
    out = tmp_path / "model"
    make_model.main([str(out), "--codec", "fp8", "--ple-layer-ids", "2", "3", "--num-shards", "13"])
    tensors = read_tensors(out)
    scales = [name for name in tensors if name.endswith("ngram_embedding.weight_scale")]
    assert sorted(scales) == [TABLE.replace("1", each, 1) + "weight_scale" for each in "12"]
    assert len(table_shards(tensors, "weight")) == 26
