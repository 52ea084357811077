"""Opening tables that are right: every codec, every kind of folder, nothing loaded."""

import json
import os
import shutil
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file, save_file

from gramary.files.checkpoint import find_checkpoints, open_checkpoint
from gramary.files.layout import TableSource
from gramary.files.source import find_sources, open_source
from gramary.files.stream import read_rows
from gramary.model.codecs import CODEC_NAMES, PLAIN_DTYPES, join_nvfp4
from gramary.model.hashing import HashSpec

TABLE = "model.layers.1.ple.ple_embedding."
EMBEDDING = f"{TABLE}ngram_embedding."


def encoded_rows(source: TableSource) -> torch.Tensor:
    rows = torch.empty(source.layout.num_rows, source.layout.row_bytes, dtype=torch.uint8)
    read_rows(source.layout, 0, len(rows), rows)
    return rows


def stored_rows(folder, codec: str, num_shards: int = 12) -> torch.Tensor:
    """The encoded rows as the safetensors package reads them."""
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors.update(load_file(file))
    names = [f"{EMBEDDING}shard_{number}.weight" for number in range(num_shards)]
    rows = torch.cat([tensors[name].view(torch.uint8) for name in names])
    if codec != "nvfp4":
        return rows
    scales = torch.cat([tensors[f"{name}_scale"].view(torch.uint8) for name in names])
    return join_nvfp4(rows, scales)


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("max_file_bytes", [1 << 40, 150_000])
@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_every_row_is_found_in_order(make_checkpoint, codec, max_file_bytes):
    """Behaviour 16: shards are ordered by number and every row is covered exactly once."""
    folder = make_checkpoint(codec=codec, max_file_bytes=max_file_bytes)
    source = open_checkpoint(folder)
    assert len(source.layout.files) > 1 or max_file_bytes == 1 << 40
    assert source.spec == HashSpec.from_config(folder)
    assert source.codec.name == codec
    assert source.layout.num_rows == source.spec.num_rows
    assert torch.equal(encoded_rows(source), stored_rows(folder, codec))


@pytest.mark.behaviour(16)
def test_numbers_may_have_leading_zeros(make_checkpoint, change_tensors):
    """Behaviour 16: shards are ordered by number, whatever the names' width."""

    def pad(tensors):
        for number in range(12):
            shard = tensors.pop(f"{EMBEDDING}shard_{number}.weight")
            tensors[f"{EMBEDDING}shard_{number:0{2 + number % 3}}.weight"] = shard

    source = open_checkpoint(change_tensors(pad))
    assert torch.equal(encoded_rows(source), stored_rows(make_checkpoint(), "bf16"))


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("num_shards", [1, 2, 11, 100, 130])
def test_any_number_of_shards(make_checkpoint, num_shards):
    """Behaviour 16: shards are ordered by number, whatever their count."""
    folder = make_checkpoint(num_shards=num_shards)
    source = open_checkpoint(folder)
    assert len(source.layout.runs) == num_shards
    assert torch.equal(encoded_rows(source), stored_rows(folder, "bf16", num_shards))


def test_the_conditional_class_has_the_same_table(make_checkpoint):
    text = open_checkpoint(make_checkpoint(codec="fp8"))
    conditional = open_checkpoint(make_checkpoint(codec="fp8", conditional=True))
    assert conditional.details["prefix"].startswith("model.language_model.layers.1.")
    assert conditional.spec == text.spec
    assert conditional.codec == text.codec
    assert conditional.model_id == text.model_id
    assert torch.equal(encoded_rows(conditional), encoded_rows(text))


@pytest.mark.parametrize("max_file_bytes", [1 << 40, 150_000])
def test_a_hub_cache_of_links_is_a_folder(make_checkpoint, tmp_path, max_file_bytes):
    folder = make_checkpoint(codec="fp8", max_file_bytes=max_file_bytes)
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, blobs / f"{number:064}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number:064}")
    (tmp_path / "main").symlink_to(snapshot)
    source = open_source(tmp_path / "main")
    assert source.model_id == open_checkpoint(folder).model_id
    assert torch.equal(encoded_rows(source), stored_rows(folder, "fp8"))


def test_files_without_an_index_are_all_searched(copy_checkpoint):
    folder = copy_checkpoint(codec="nvfp4", max_file_bytes=150_000)
    (folder / "model.safetensors.index.json").unlink()
    assert torch.equal(encoded_rows(open_checkpoint(folder)), stored_rows(folder, "nvfp4"))


def test_files_beside_the_model_are_not_searched(copy_checkpoint):
    folder = copy_checkpoint(max_file_bytes=150_000)
    expected = open_checkpoint(folder)
    # An index leaves out other files, and a single file leaves out an index: transformers' rule.
    save_file({f"{EMBEDDING}shard_0.weight": torch.zeros(1)}, folder / "other.safetensors")
    assert open_checkpoint(folder) == expected
    tensors = {}
    for file in folder.glob("model-*.safetensors"):
        tensors.update(load_file(file))
    save_file(tensors, folder / "model.safetensors")
    source = open_checkpoint(folder)
    assert [os.path.basename(file.path) for file in source.layout.files] == ["model.safetensors"]


def test_files_of_other_tensors_may_be_absent(copy_checkpoint):
    folder = copy_checkpoint(codec="fp8", max_file_bytes=150_000)
    expected = open_checkpoint(folder)
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    of_table = {file for name, file in weight_map.items() if ".ple_embedding." in name}
    others = set(weight_map.values()) - of_table
    assert others
    for file in others:
        (folder / file).unlink()
    assert open_checkpoint(folder) == expected


def test_several_tables_are_told_apart_by_their_layer(make_checkpoint):
    folder = make_checkpoint(codec="fp8", ple_layer_ids=(2, 3))
    sources = find_sources(folder)
    assert [source.spec.table_index for source in sources] == [0, 1]
    assert [source.spec.decoder_layer for source in sources] == [1, 2]
    assert sources == tuple(open_source(folder, layer) for layer in (0, 1))
    assert sources[0].model_id != sources[1].model_id
    assert not torch.equal(encoded_rows(sources[0]), encoded_rows(sources[1])[:18688])
    (only,) = find_checkpoints(make_checkpoint())
    assert only == open_checkpoint(make_checkpoint(), table_index=0)


@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("codec", ["fp8", "nvfp4"])
def test_a_scale_is_read_in_either_shape_and_dtype(change_tensors, codec, shape, scale_dtype):
    name = EMBEDDING + {"fp8": "weight_scale", "nvfp4": "weight_scale_2"}[codec]
    value = torch.tensor(3.0e-4, dtype=scale_dtype)
    folder = change_tensors(lambda tensors: tensors.update({name: value.view(shape)}), codec=codec)
    source = open_checkpoint(folder)
    assert source.codec.scale == value.float().item()
    assert source.details["scale_tensor"] == name
    assert source.details["scale_file"] == "model.safetensors"
    assert source.details["scale_dtype"] == {2: "BF16", 4: "F32"}[value.element_size()]


@pytest.mark.behaviour(2)
def test_a_table_is_described_without_storage_for_it(make_checkpoint):
    """Behaviour 2: shape, codec and bytes are read with no storage allocated."""
    folder = make_checkpoint(ngram_vocab_size_base=30_000)
    open_checkpoint(folder)
    tracemalloc.start()
    source = open_checkpoint(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert source.layout.nbytes > 30_000_000
    assert peak < source.layout.nbytes / 20


@pytest.mark.behaviour(18)
@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("method", ["modelopt", "fp8", "bitsandbytes"])
def test_the_models_quantisation_does_not_decide_the_codec(change_config, codec, method):
    """Behaviour 18: the codec comes from the table's own tensors."""

    def quantise(config):
        config["quantization_config"] = {"quant_method": method, "quant_algo": "NVFP4"}
        config["dtype"] = "float32"

    assert open_checkpoint(change_config(quantise, codec=codec)).codec.name == codec


@pytest.mark.behaviour(20)
@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("eos", [256, [256, 1]])
def test_seed_and_parts_may_be_absent_and_eos_a_list(
    make_checkpoint, change_config, conditional, eos
):
    """Behaviour 20: eos_token_id may be a list; seed and split_ngram_parts may be absent."""

    def strip(config):
        text = config["text_config"] if conditional else config
        del text["seed"], text["split_ngram_parts"]
        text["eos_token_id"] = eos

    source = open_checkpoint(change_config(strip, conditional=conditional))
    assert source.spec == open_checkpoint(make_checkpoint()).spec


@pytest.mark.behaviour(20)
def test_the_shards_of_the_files_count_whatever_the_configuration_says(change_config):
    """Behaviour 20: the number of shards is that of the files."""
    folder = change_config(lambda config: config.update(split_ngram_parts=512))
    assert len(open_checkpoint(folder).layout.runs) == 12


@pytest.mark.behaviour(21)
def test_other_tensors_are_left_alone(make_checkpoint, change_tensors):
    """Behaviour 21: whatever else the files hold changes nothing, and nothing is written."""

    def add(tensors):
        strange = torch.zeros(3, dtype=torch.float64)
        for name in (
            f"{TABLE}hashstats_counts",
            f"{TABLE}ngram_embedding.hashstats_0.weight",
            f"{EMBEDDING}shard_0.hashstats_hits",
            f"{TABLE}token_lookup",
            f"{TABLE}token_lookup.weight",
            f"{EMBEDDING}token_lookup",
            f"{TABLE}something_new",
            "model.language_model.layers.1.ple.ple_embedding.something_new",
            "model.layers.5.ple.ple_embedding.something_new",
            "mtp.layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight",
            "model.visual.layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight",
            "x.model.layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight",
            "model.layers.1.ple.other",
        ):
            tensors[name] = strange.clone()

    folder = change_tensors(add, codec="fp8")
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}
    source = open_checkpoint(folder)
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in before} == before
    expected = open_checkpoint(make_checkpoint(codec="fp8"))
    assert (source.spec, source.codec, source.model_id) == (
        expected.spec,
        expected.codec,
        expected.model_id,
    )
    assert torch.equal(encoded_rows(source), encoded_rows(expected))


def test_the_identity_follows_the_content(make_checkpoint, copy_checkpoint):
    expected = open_checkpoint(make_checkpoint(codec="fp8")).model_id
    assert open_checkpoint(copy_checkpoint(codec="fp8")).model_id == expected
    split = make_checkpoint(codec="fp8", max_file_bytes=150_000, num_shards=13)
    assert open_checkpoint(split).model_id == expected
    assert open_checkpoint(make_checkpoint(codec="fp8", seed=1)).model_id != expected
    assert open_checkpoint(make_checkpoint(codec="nvfp4")).model_id != expected


def test_the_identity_sees_the_scale_and_the_last_row(change_tensors, make_checkpoint):
    expected = open_checkpoint(make_checkpoint()).model_id

    def change_last(tensors):
        tensors[f"{EMBEDDING}shard_11.weight"][-1, -1] += 1

    assert open_checkpoint(change_tensors(change_last)).model_id != expected


def test_a_relative_path_stays_right_when_the_process_moves(make_checkpoint, monkeypatch, tmp_path):
    folder = make_checkpoint()
    monkeypatch.chdir(folder.parent)
    source = open_source(folder.name)
    monkeypatch.chdir(tmp_path)
    assert torch.equal(encoded_rows(source), stored_rows(folder, "bf16"))


def test_details_are_plain_json(checkpoint):
    source = open_checkpoint(checkpoint)
    details = json.loads(json.dumps(source.details))
    assert details["num_shards"] == 12
    assert details["shards_of_files"] == {"model.safetensors": 12}
    assert (details["scale_tensor"] is None) == (source.codec.name in PLAIN_DTYPES)
