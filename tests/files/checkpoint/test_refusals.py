"""Every way a folder can be wrong is its own error, raised before any row is read."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from gramary.errors import (
    ArgumentError,
    CheckpointError,
    ConfigError,
    GramaryError,
    HashMismatchError,
    PackError,
    ScaleError,
    ShardError,
    TableNotFoundError,
)
from gramary.files import stream as row_stream
from gramary.files.checkpoint import find_checkpoints, open_checkpoint
from gramary.files.checkpoint.safetensors_header import TensorEntry
from gramary.files.source import open_source

TABLE = "model.layers.1.ple.ple_embedding."
EMBEDDING = f"{TABLE}ngram_embedding."
INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def _no_row_is_read(monkeypatch):
    """Reading a row before everything was found right fails the test."""

    def fail(*_arguments):
        raise AssertionError("a row was read")

    monkeypatch.setattr(row_stream.RowReader, "read", fail)


def shard(number, suffix="weight"):
    return f"{EMBEDDING}shard_{number}.{suffix}"


def refused(folder, error, *words):
    """Asserts that opening raises exactly `error` with a message that has all of `words`."""
    with pytest.raises(GramaryError) as caught:
        open_checkpoint(folder)
    assert type(caught.value) is error, caught.value
    for word in words:
        assert word in str(caught.value)


def drop(*names):
    def change(tensors):
        for name in names:
            del tensors[name]

    return change


def put(name, tensor):
    return lambda tensors: tensors.update({name: tensor})


def replace(name, change):
    return lambda tensors: tensors.update({name: change(tensors[name]).clone()})


# --- folders ---------------------------------------------------------------------------------


def test_no_such_folder(tmp_path):
    refused(tmp_path / "none", CheckpointError, "No such file", "check the path")
    with pytest.raises(ArgumentError, match=r"path: .*does not exist; check it"):
        open_source(tmp_path / "none")
    for wrong in (None, 5, b"none"):
        with pytest.raises(ArgumentError, match=r"^path: expected a str or PathLike, got "):
            open_source(wrong)


def test_a_folder_without_weights(copy_checkpoint):
    folder = copy_checkpoint()
    (folder / "model.safetensors").unlink()
    refused(folder, TableNotFoundError, "expected model.safetensors", "found none")
    (folder / "pytorch_model.bin").write_bytes(b"")
    refused(folder, TableNotFoundError, "only pytorch_model.bin; convert it to safetensors")


def test_a_folder_without_a_configuration(copy_checkpoint):
    folder = copy_checkpoint()
    (folder / "config.json").unlink()
    refused(folder, ConfigError, "config.json")


@pytest.mark.parametrize(
    "text", [b"\xef\xbb\xbf{}", b"", b"[]", b"{", b"\xff", b'{"text_config": 3}']
)
def test_a_configuration_that_is_none(copy_checkpoint, text):
    folder = copy_checkpoint()
    (folder / "config.json").write_bytes(text)
    refused(folder, ConfigError, "config.json")


@pytest.mark.parametrize("layers", [None, []])
def test_a_model_without_a_table(change_config, layers):
    folder = change_config(lambda config: config.update(ple_layer_ids=layers))
    refused(folder, TableNotFoundError, "names no ple_layer_ids")
    with pytest.raises(TableNotFoundError):
        find_checkpoints(folder)


def test_a_configuration_whose_tables_are_not_there(change_tensors):
    def drop_all(tensors):
        for name in [name for name in tensors if ".ple_embedding." in name]:
            del tensors[name]

    refused(
        change_tensors(drop_all),
        TableNotFoundError,
        "*.layers.1.ple.ple_embedding.ngram_embedding.shard_N.weight",
        "decoder layer 1",
        "download all files",
    )


def test_a_table_in_one_piece(change_tensors):
    def join(tensors):
        shards = [tensors.pop(shard(number)) for number in range(12)]
        tensors[f"{EMBEDDING}weight"] = torch.cat(shards)

    refused(change_tensors(join), CheckpointError, f"{EMBEDDING}weight", "shard_N.weight")


def test_tables_of_layers_that_the_configuration_does_not_name(change_config):
    folder = change_config(lambda config: config.update(ple_layer_ids=[2]), ple_layer_ids=(2, 3))
    refused(folder, CheckpointError, "layers [1, 2]", "ple_layer_ids [2]")


@pytest.mark.parametrize("layer", [None, 2, -1, True, "0", 0.0])
def test_a_layer_that_is_not_there_or_not_chosen(make_checkpoint, layer):
    folder = make_checkpoint(ple_layer_ids=(2, 3))
    error = ArgumentError if layer is None else TableNotFoundError
    with pytest.raises(error, match="table_index: expected an index from 0 to 1"):
        open_checkpoint(folder, layer)


def test_a_file_where_a_folder_is_expected(make_checkpoint):
    with pytest.raises(PackError, match=r"config\.json: it is no pack .*the model's folder"):
        open_source(make_checkpoint() / "config.json")


# --- shards ----------------------------------------------------------------------------------


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("number", [0, 1, 5, 10, 11])
def test_a_missing_shard_is_named(change_tensors, number):
    """Behaviour 16: a missing shard is named, also the first and the last."""
    folder = change_tensors(drop(shard(number)))
    refused(folder, ShardError, f"{shard(number)}: missing", "gives 18688 rows", "11 shards")


@pytest.mark.behaviour(16)
def test_several_missing_shards_are_named(change_tensors):
    """Behaviour 16: missing shards are named, the first three of many."""
    folder = change_tensors(drop(*(shard(number) for number in (2, 3, 5, 7))))
    refused(folder, ShardError, shard(2), shard(3), shard(5), "and more: missing")


@pytest.mark.behaviour(16)
def test_a_shard_too_many_is_named(change_tensors):
    """Behaviour 16: every row is covered exactly once."""
    folder = change_tensors(put(shard(12), torch.zeros(4, 32, dtype=torch.bfloat16)))
    refused(folder, ShardError, f"{shard(12)}' is one too many", "hold 18692")


@pytest.mark.behaviour(16)
def test_a_doubled_shard_is_named(change_tensors):
    """Behaviour 16: the same number in two spellings is a doubled shard."""
    folder = change_tensors(lambda t: t.update({shard("03"): t[shard(3)].clone()}))
    refused(folder, ShardError, "expected one", shard(3), shard("03"))


@pytest.mark.behaviour(16)
def test_a_shard_in_two_files_is_named(copy_checkpoint):
    """Behaviour 16: the same shard in two files is a doubled shard, and both are named."""
    folder = copy_checkpoint(max_file_bytes=150_000)
    (folder / INDEX).unlink()
    tensors = {shard(3): torch.zeros(1558, 32, dtype=torch.bfloat16)}
    save_file(tensors, folder / "extra.safetensors")
    refused(folder, ShardError, shard(3), "extra.safetensors", "model-0", "remove one")


@pytest.mark.behaviour(16)
def test_a_table_under_both_prefixes(change_tensors):
    """Behaviour 16: a table that is there twice is refused."""

    def double(tensors):
        for name in [name for name in tensors if ".ple_embedding." in name]:
            copied = name.replace("model.", "model.language_model.", 1)
            tensors[copied] = tensors[name].clone()

    folder = change_tensors(double)
    refused(folder, CheckpointError, "one name", f"{TABLE}", "model.language_model.layers.1.")


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("number", [0, 4, 11])
@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[:-1],
        lambda rows: torch.cat((rows, rows[:1])),
        lambda rows: rows[:, :-1],
        lambda rows: rows.flatten(),
        lambda rows: rows[:0],
        lambda rows: rows.unsqueeze(0),
    ],
    ids=["short", "long", "narrow", "flat", "empty", "deep"],
)
def test_a_misshapen_shard_is_named(change_tensors, number, change):
    """Behaviour 16: a misshapen shard is named with the shape it should have."""
    folder = change_tensors(replace(shard(number), change))
    refused(folder, ShardError, f"{shard(number)}' is BF16 [", "expected")


@pytest.mark.behaviour(16)
def test_shards_of_another_geometry(change_config):
    """Behaviour 16: the total is that of the geometry."""
    config = {"make_ngram_vocab_size_divisible_by": 4096}
    folder = change_config(lambda each: each.update(config))
    refused(folder, ShardError, "gives 20480 rows, the 12 shards hold 18688")


@pytest.mark.behaviour(16)
def test_shards_that_cover_the_rows_in_an_unusual_way(change_tensors):
    """Behaviour 16: every shard has ceil(rows / count) rows, the last may have fewer."""

    def cut(tensors):
        rows = torch.cat([tensors.pop(shard(number)) for number in range(12)])
        for number, each in enumerate(rows.split(1600)):
            tensors[shard(number)] = each.clone()

    refused(change_tensors(cut), ShardError, f"{shard(0)}' is BF16 [1600, 32]; expected 1558 rows")


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_shard_of_another_dtype_is_named(change_tensors, dtype):
    """Behaviour 16: a shard that is not encoded like the others is named."""
    folder = change_tensors(replace(shard(7), lambda rows: rows.to(dtype)))
    refused(folder, ShardError, f"{shard(7)}' is F", "expected BF16", shard(0))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e5m2])
def test_a_dtype_of_no_codec_is_named(change_tensors, dtype):
    def cast(tensors):
        for number in range(12):
            tensors[shard(number)] = tensors[shard(number)].to(dtype)

    refused(change_tensors(cast), ShardError, shard(0), "expected one of BF16, F16, F32, F8_E4M3")


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("missing_bytes", [1, 5_000, 200_000])
def test_a_truncated_file_names_the_shard(copy_checkpoint, missing_bytes):
    """Behaviour 16: a file that ends early names the shard it cuts."""
    folder = copy_checkpoint(max_file_bytes=150_000)
    file = sorted(load_index(folder)[shard(number)] for number in range(12))[0]
    os.truncate(folder / file, max(60, (folder / file).stat().st_size - missing_bytes))
    error = CheckpointError if missing_bytes == 200_000 else ShardError
    refused(folder, error, file, "download it again")


def load_index(folder):
    return json.loads((folder / INDEX).read_text())["weight_map"]


# --- scales ----------------------------------------------------------------------------------


@pytest.mark.behaviour(17)
@pytest.mark.parametrize(("codec", "name"), [("fp8", "weight_scale"), ("nvfp4", "weight_scale_2")])
def test_a_missing_scale_is_named(change_tensors, codec, name):
    """Behaviour 17: a missing scale is an error that names it; no scale is assumed."""
    folder = change_tensors(drop(EMBEDDING + name), codec=codec)
    refused(folder, ScaleError, f"{EMBEDDING}{name}: missing", "no value is assumed")


@pytest.mark.behaviour(17)
@pytest.mark.parametrize("number", [0, 6, 11])
def test_missing_block_scales_are_named(change_tensors, number):
    """Behaviour 17: missing block scales are an error that names them."""
    folder = change_tensors(drop(shard(number, "weight_scale")), codec="nvfp4")
    refused(folder, ScaleError, f"{shard(number, 'weight_scale')}: missing")


@pytest.mark.behaviour(17)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0, -0.5, -0.0])
@pytest.mark.parametrize(("codec", "name"), [("fp8", "weight_scale"), ("nvfp4", "weight_scale_2")])
def test_a_scale_that_cannot_be(change_tensors, codec, name, value):
    """Behaviour 17: a scale that is not finite and above zero is refused with its value."""
    folder = change_tensors(put(EMBEDDING + name, torch.tensor(value)), codec=codec)
    refused(folder, ScaleError, EMBEDDING + name, f"found {value}")


@pytest.mark.behaviour(17)
@pytest.mark.parametrize(
    "scale",
    [
        torch.ones(2),
        torch.ones(1, 1),
        torch.ones(0),
        torch.ones((), dtype=torch.float16),
        torch.ones((), dtype=torch.float64),
        torch.ones((), dtype=torch.uint8),
    ],
    ids=str,
)
@pytest.mark.parametrize(("codec", "name"), [("fp8", "weight_scale"), ("nvfp4", "weight_scale_2")])
def test_a_misshapen_scale(change_tensors, codec, name, scale):
    """Behaviour 17: a scale of another shape or dtype is not converted."""
    folder = change_tensors(put(EMBEDDING + name, scale), codec=codec)
    refused(folder, ScaleError, EMBEDDING + name, "expected BF16 or F32 [] or [1]")


@pytest.mark.behaviour(17)
@pytest.mark.parametrize(
    ("codec", "name"),
    [
        ("bf16", "weight_scale"),
        ("fp32", "weight_scale_2"),
        ("fp8", "weight_scale_2"),
        ("nvfp4", "weight_scale"),
        ("bf16", "shard_3.weight_scale"),
        ("fp8", "shard_3.weight_scale"),
    ],
)
def test_a_scale_that_no_row_needs(change_tensors, codec, name):
    """Behaviour 17: a scale that the codec has no use for is not silently left out."""
    folder = change_tensors(put(EMBEDDING + name, torch.tensor(1.0)), codec=codec)
    refused(folder, ScaleError, EMBEDDING + name, f"does not belong to {codec} rows")


@pytest.mark.parametrize(
    "change",
    [
        lambda scales: scales[:-1],
        lambda scales: scales[:, :1],
        lambda scales: scales.float(),
        lambda scales: scales.view(torch.uint8),
    ],
    ids=["short", "narrow", "float", "bytes"],
)
def test_misshapen_block_scales(change_tensors, change):
    name = shard(5, "weight_scale")
    refused(
        change_tensors(replace(name, change), codec="nvfp4"),
        ScaleError,
        name,
        "expected F8_E4M3 [1558, 2]",
    )


def test_truncated_block_scales(copy_checkpoint):
    folder = copy_checkpoint(codec="nvfp4")
    tensors = load_file(folder / "model.safetensors")
    scales = {shard(n, "weight_scale"): tensors.pop(shard(n, "weight_scale")) for n in range(12)}
    save_file(tensors, folder / "a.safetensors")
    save_file(scales, folder / "b.safetensors")
    (folder / "model.safetensors").unlink()
    os.truncate(folder / "b.safetensors", (folder / "b.safetensors").stat().st_size - 1)
    refused(folder, ScaleError, "b.safetensors", "is cut off", "download it again")


def test_nvfp4_rows_that_are_no_whole_blocks(change_tensors):
    def widen(tensors):
        for number in range(12):
            tensors[shard(number)] = torch.zeros(1558, 12, dtype=torch.uint8)

    folder = change_tensors(widen)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "ple_embed_dim": 24 * 16}))
    refused(folder, ShardError, "multiple of 16", "gives 24")


@pytest.mark.parametrize(
    "name", ["shard_0.bias", "weight_scale_inv", "shard_x.weight", "weight_zero"]
)
def test_a_tensor_of_an_unknown_encoding(change_tensors, name):
    folder = change_tensors(put(EMBEDDING + name, torch.ones(1)), codec="fp8")
    refused(folder, CheckpointError, EMBEDDING + name, "no table encoding gramary reads")


# --- hash buffers ----------------------------------------------------------------------------


@pytest.mark.behaviour(19)
@pytest.mark.parametrize(
    ("name", "element"),
    [("layer_multipliers", 2), ("ngram_heads_vocab_sizes", 0), ("ngram_heads_offsets", 15)],
)
def test_other_hash_constants_are_refused_with_both_values(
    change_tensors, make_checkpoint, name, element
):
    """Behaviour 19: constants that differ from the rebuilt ones are refused, both shown."""
    stored = load_file(make_checkpoint() / "model.safetensors")[TABLE + name][element].item()

    def change(tensors):
        tensors[TABLE + name][element] += 2

    refused(
        change_tensors(change),
        HashMismatchError,
        TABLE + name,
        f"element {element} is {stored + 2}, but config.json gives {stored}",
    )


@pytest.mark.behaviour(19)
@pytest.mark.parametrize("field", ["seed", "vocab_size", "ngram_vocab_size_base"])
def test_a_configuration_of_another_model_is_refused(change_config, field):
    """Behaviour 19: a configuration that gives other constants is refused."""
    folder = change_config(lambda config: config.update({field: config[field] + 1000}))
    refused(folder, HashMismatchError, "are of different models", field)


@pytest.mark.behaviour(19)
@pytest.mark.parametrize(
    "name", ["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"]
)
def test_hash_constants_that_cannot_be_compared_are_refused(change_tensors, name):
    """Behaviour 19: a missing or misshapen buffer proves nothing, so it is refused."""
    refused(change_tensors(drop(TABLE + name)), HashMismatchError, TABLE + name, "no such tensor")


@pytest.mark.behaviour(19)
@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t.int(), lambda t: t[None]])
def test_misshapen_hash_constants_are_refused(change_tensors, change):
    """Behaviour 19: buffers of another shape or dtype are refused."""
    name = f"{TABLE}ngram_heads_offsets"
    refused(change_tensors(replace(name, change)), HashMismatchError, name, "expected I64 [16]")


# --- indexes and hostile folders -------------------------------------------------------------


@pytest.fixture
def change_index(copy_checkpoint):
    """`change_index(change)`: a copied checkpoint in many files whose index was altered."""

    def spoil(change):
        folder = copy_checkpoint(max_file_bytes=150_000)
        content = json.loads((folder / INDEX).read_text())
        changed = change(content)
        text = changed if isinstance(changed, bytes) else json.dumps(content).encode()
        (folder / INDEX).write_bytes(text)
        return folder

    return spoil


@pytest.mark.parametrize(
    "file",
    [
        "../model/model.safetensors",
        "a/../../x.safetensors",
        "/etc/passwd",
        "/x.safetensors",
        "x.bin",
        "",
        "a\0.safetensors.bin",
        3,
        None,
        ["x.safetensors"],
    ],
)
def test_an_index_cannot_name_files_outside_the_folder(change_index, file):
    folder = change_index(lambda index: index["weight_map"].update(anything=file))
    refused(folder, CheckpointError, INDEX, "inside the folder")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b'{"weight_map": []}',
        b'{"weight_map": {}}',
        b"\xef\xbb\xbf{}",
        b'{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}',
        b'{"a":' * 100_000,
        b"\xff\xfe",
    ],
    ids=range(9),
)
def test_an_index_that_is_none(change_index, text):
    refused(change_index(lambda _: text), CheckpointError, INDEX)


def test_an_index_that_names_a_missing_file(change_index):
    folder = change_index(lambda _: None)
    file = load_index(folder)[shard(3)]
    (folder / file).unlink()
    refused(folder, ShardError, INDEX, file, "is missing; download it again", EMBEDDING)


def test_an_index_that_names_the_wrong_file(change_index):
    def move(index):
        files = sorted(set(index["weight_map"].values()))
        files.remove(index["weight_map"][shard(3)])
        index["weight_map"][shard(3)] = files[0]

    refused(change_index(move), ShardError, INDEX, shard(3), "does not hold it")


def test_an_index_that_names_a_shard_that_is_nowhere(change_index):
    def add(index):
        index["weight_map"][shard(12)] = index["weight_map"][shard(0)]

    refused(change_index(add), ShardError, INDEX, shard(12), "does not hold it")


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling", "loop", "empty", "foreign"])
def test_a_strange_file_of_the_models_name(copy_checkpoint, kind):
    folder = copy_checkpoint()
    path = folder / "model.safetensors"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "empty":
        path.touch()
    elif kind == "foreign":
        shutil.copy(folder / "tokenizer.json", path)
    else:
        path.symlink_to("nowhere" if kind == "dangling" else path)
    descriptors = os.listdir("/proc/self/fd")
    refused(folder, CheckpointError, "model.safetensors: ")
    assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.parametrize("kind", ["folder", "pipe", "endless"])
def test_an_index_that_is_no_file(copy_checkpoint, kind):
    path = copy_checkpoint(max_file_bytes=1 << 20) / INDEX
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    refused(path.parent, CheckpointError, f"{INDEX}: expected a regular file")


def test_a_folder_that_links_to_itself(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(tmp_path / "loop", CheckpointError, "Too many levels of symbolic links")


def test_a_table_of_more_shards_than_memory_holds(change_tensors):
    """A hostile row count cannot make the finder build a list of it."""

    def shrink(tensors):
        for number in range(12):
            tensors[shard(number)] = torch.zeros(1, 32, dtype=torch.bfloat16)

    refused(change_tensors(shrink), ShardError, shard(12), "and more: missing")


@pytest.mark.parametrize("number", ["9" * 9, "9" * 5000, "٣", "-1", "1 "])
def test_strange_shard_numbers(change_tensors, number):
    rows = torch.zeros(1558, 32, dtype=torch.bfloat16)
    folder = change_tensors(put(shard(number), rows))
    error = ShardError if number == "9" * 9 else CheckpointError
    refused(folder, error, "ngram_embedding.shard_")


@pytest.mark.parametrize("name", ["a\x1b[31m.safetensors", "a\n.safetensors", "\udcff.safetensors"])
def test_file_names_that_would_take_over_a_terminal(change_index, name):
    folder = change_index(lambda index: index["weight_map"].update(anything=name))
    refused(folder, CheckpointError, INDEX, "printable file names")
    (folder / INDEX).unlink()
    (folder / name).touch()
    refused(folder, CheckpointError, "printable file names")


def test_a_file_exchanged_while_it_is_read(copy_checkpoint, monkeypatch):
    folder = copy_checkpoint()
    read = TensorEntry.read

    def exchange(entry):
        os.utime(entry.file.path, ns=(1, 1))
        return read(entry)

    monkeypatch.setattr(TensorEntry, "read", exchange)
    refused(folder, CheckpointError, "model.safetensors: changed while it was read; try again")


@pytest.mark.behaviour(36)
def test_messages_stay_short_and_printable(change_tensors):
    """Behaviour 36: a message tells what to do; a hostile name cannot flood or break it."""
    name = f"{EMBEDDING}shard_\x1b[31m\n{'x' * 100_000}.weight"
    folder = change_tensors(put(name, torch.ones(1)))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert len(message) < 1000
    assert message.isprintable()
