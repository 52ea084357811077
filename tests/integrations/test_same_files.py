"""Kind 1: rows and weights come from the same files, whatever word, field or link names them.

The oracle is transformers' own class with the same words: it reads rows and weights alike.
"""

import inspect
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_utils import PreTrainedModel

from gramary import PLELayer, Table
from gramary.errors import (
    ArgumentError,
    CheckpointError,
    GramaryError,
    TableNotFoundError,
    UnsupportedError,
)
from gramary.files.pack import build_pack
from gramary.files.source import open_source
from gramary.integrations.transformers import load, open_tables

OTHER = {"codec": "bf16", "seed": 1}
IDS = torch.tensor([[73, 16, 32, 119, 97, 115, 8]])


@pytest.fixture
def folder(copy_checkpoint: Callable[..., Path]) -> Path:
    """A model's folder that a test may put another model into."""
    return copy_checkpoint(codec="bf16")


@pytest.fixture
def other(make_checkpoint: Callable[..., Path]) -> Path:
    """Another model of the same geometry, with other weights and other rows."""
    return make_checkpoint(**OTHER)


def split(source: Path, folder: Path, index: str, prefix: str = "part") -> None:
    """Writes a model's tensors to two files of a folder, and their index."""
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    placed = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"{prefix}-{number}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
        placed |= dict.fromkeys(part, file)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def change_config(folder: Path, **fields: Any) -> None:
    """Changes fields of a folder's configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def by_variant(folder: Path, other: Path) -> dict[str, Any]:
    """A file of a variant."""
    shutil.copy(other / "model.safetensors", folder / "model.b.safetensors")
    return {"variant": "b"}


def by_variant_index(folder: Path, other: Path) -> dict[str, Any]:
    """The index of a variant."""
    split(other, folder, "model.safetensors.index.b.json")
    return {"variant": "b"}


def by_subfolder(folder: Path, other: Path) -> dict[str, Any]:
    """A folder inside the folder."""
    shutil.copytree(other, folder / "inner")
    return {"subfolder": "inner"}


def by_variant_of_subfolder(folder: Path, other: Path) -> dict[str, Any]:
    """A variant in a folder inside the folder."""
    shutil.copytree(folder, folder.parent / "inner")
    shutil.move(folder.parent / "inner", folder / "inner")
    return by_variant(folder / "inner", other) | {"subfolder": "inner"}


def by_config_file(folder: Path, other: Path) -> dict[str, Any]:
    """A file that config.json names."""
    shutil.copy(other / "model.safetensors", folder / "other.safetensors")
    change_config(folder, transformers_weights="other.safetensors")
    return {}


def by_config_index(folder: Path, other: Path) -> dict[str, Any]:
    """An index that config.json names."""
    split(other, folder, "other.safetensors.index.json")
    change_config(folder, transformers_weights="other.safetensors.index.json")
    return {}


def by_config_before_variant(folder: Path, other: Path) -> dict[str, Any]:
    """A file that config.json names, beside a variant that is not read then."""
    shutil.copy(folder / "model.safetensors", folder / "model.b.safetensors")
    return by_config_file(folder, other) | {"variant": "b"}


def by_word(folder: Path, other: Path) -> dict[str, Any]:
    """A file that a word for the configuration names."""
    change_config(folder, transformers_weights="model.safetensors")
    shutil.copy(other / "model.safetensors", folder / "other.safetensors")
    return {"transformers_weights": "other.safetensors"}


def by_config_object(folder: Path, other: Path) -> dict[str, Any]:
    """A file that a configuration in memory names."""
    shutil.copy(other / "model.safetensors", folder / "other.safetensors")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.transformers_weights = "other.safetensors"
    return {"config": config}


def by_config_elsewhere(folder: Path, other: Path) -> dict[str, Any]:
    """A file that the configuration of another folder names."""
    shutil.copy(other / "model.safetensors", folder / "other.safetensors")
    elsewhere = Path(shutil.copytree(folder, folder.parent / "elsewhere"))
    change_config(elsewhere, transformers_weights="other.safetensors")
    return {"config": elsewhere}


def by_single_file(folder: Path, other: Path) -> dict[str, Any]:
    """model.safetensors, beside an index of the first model's files."""
    split(folder, folder, "model.safetensors.index.json")
    shutil.copy(other / "model.safetensors", folder / "model.safetensors")
    return {}


def by_link(folder: Path, other: Path) -> dict[str, Any]:
    """A symbolic link in the place of the file."""
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(other / "model.safetensors")
    return {}


WAYS = [value for name, value in list(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_kind_1_the_rows_are_those_of_the_weights_files(
    folder: Path, other: Path, way: Callable[[Path, Path], dict[str, Any]]
) -> None:
    """Kind 1: with each way to another model's files, its weights come with its rows."""
    words = way(folder, other)
    oracle = transformers.Qwen4ExpForCausalLM.from_pretrained(folder, **words)
    theirs = load_file(other / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(oracle.get_input_embeddings().weight, theirs)
    with load(folder, placement="disk", **words) as model, torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, oracle(input_ids=IDS).logits)


@pytest.mark.parametrize("way", [by_config_file, by_config_index, by_single_file, by_link])
def test_kind_1_a_table_and_a_layer_follow_the_configuration_too(
    folder: Path, other: Path, way: Callable[[Path, Path], dict[str, Any]]
) -> None:
    """Kind 1: what needs no word is read alike without transformers."""
    way(folder, other)
    ids = torch.arange(50)
    with Table.open(folder, placement="disk") as table, Table.open(other) as expected:
        assert torch.equal(table.lookup(ids), expected.lookup(ids))
        layer = PLELayer.from_checkpoint(folder, table=table)
        theirs = PLELayer.from_checkpoint(other, table=expected)
        assert torch.equal(layer.key_proj.weight, theirs.key_proj.weight)


@pytest.mark.parametrize(("classes", "where"), [
    (["Qwen4ExpForConditionalGeneration"], "whole"),
    (["Qwen4ExpForCausalLM"], "text"),
], ids=["whole", "text"])  # fmt: skip
def test_kind_1_a_whole_models_configuration_names_files_at_the_level_that_its_class_reads(
    copy_checkpoint: Any, make_checkpoint: Any, classes: list[str], where: str
) -> None:
    """Kind 1: a name at the other level is not read by transformers, and not by us."""
    folder = copy_checkpoint(codec="bf16", conditional=True)
    other = make_checkpoint(**OTHER, conditional=True)
    shutil.copy(other / "model.safetensors", folder / "other.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"architectures": classes}
    for level in ("whole", "text"):
        changed = json.loads(json.dumps(config))
        target = changed if level == "whole" else changed["text_config"]
        target["transformers_weights"] = "other.safetensors"
        (folder / "config.json").write_text(json.dumps(changed))
        oracle = getattr(transformers, classes[0]).from_pretrained(folder)
        named = other if level == where else make_checkpoint(codec="bf16", conditional=True)
        with load(folder, placement="disk") as model, torch.no_grad(), Table.open(named) as table:
            assert type(model).__name__ == classes[0]
            assert torch.equal(model(input_ids=IDS).logits, oracle(input_ids=IDS).logits)
            rows = [one.lookup(torch.arange(9)) for one in (model.tables[0], table)]
            assert torch.equal(*rows)
        with Table.open(folder, placement="disk") as table:
            assert torch.equal(table.lookup(torch.arange(9)), rows[0])


REFUSED = {
    "state_dict": {},
    "gguf_file": "model.gguf",
    "use_safetensors": False,
    "revision": "refs/pr/1",
    "disable_mmap": True,
    "subfolder": "attic",
    "variant": "attic",
    "transformers_weights": "attic.safetensors",
}


@pytest.mark.behaviour(13)
@pytest.mark.parametrize("name", REFUSED)
def test_kind_1_a_word_that_no_table_can_follow_is_refused_by_name(folder: Path, name: str) -> None:
    """Kind 1 and behaviour 13: nothing is loaded beside rows that do not belong to it."""
    with pytest.raises(GramaryError, match=name):
        load(folder, **{name: REFUSED[name]})


@pytest.mark.parametrize(
    ("mapping", "is_refused"),
    [
        ({r"^model\.layers\.1\.": "unused.", r"^others\.": "model.layers.1."}, True),
        ({r"shard_": "part_"}, True),
        ({r"^nothing\.": "model."}, False),
        ({r"^head\.": "lm_head."}, False),
    ],
)
def test_kind_1_a_key_mapping_may_not_rename_rows(
    folder: Path, mapping: dict[str, str], is_refused: bool
) -> None:
    """Kind 1: renamed on the way, another table would become the model's."""
    if is_refused:
        with pytest.raises(ArgumentError, match=r"key_mapping.*ple_embedding"):
            load(folder, placement="disk", key_mapping=mapping)
        return
    with load(folder, placement="disk", key_mapping=mapping) as model:
        assert model.tables[0].spec.num_rows > 0


def test_kind_1_weights_in_other_files_than_safetensors_are_refused(folder: Path) -> None:
    """Kind 1: beside files without an index, transformers reads pytorch_model.bin."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "rows.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors.*rows\.safetensors"):
        load(folder)
    (folder / "rows.safetensors").unlink()
    with pytest.raises(TableNotFoundError, match="convert it to safetensors"):
        load(folder)


def test_kind_1_what_transformers_finds_in_the_end_is_what_counts(
    folder: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind 1: a way to other files that nobody thought of takes the rows along, or is refused."""
    real = transformers.modeling_utils._get_resolved_checkpoint_files
    found = [str(other / "model.safetensors")]

    def find_others(*arguments: Any, **options: Any) -> Any:
        real(*arguments, **options)
        return found, None

    monkeypatch.setattr(transformers.modeling_utils, "_get_resolved_checkpoint_files", find_others)
    with load(folder, placement="disk") as model, Table.open(other) as expected:
        ids = torch.arange(50)
        assert torch.equal(model.tables[0].lookup(ids), expected.lookup(ids))
    found[0] = str(folder / "model.bin")
    torch.save(load_file(folder / "model.safetensors"), folder / "model.bin")
    with pytest.raises(UnsupportedError, match=r"model\.bin"):
        load(folder, placement="disk")


def test_kind_1_a_checkpoint_of_several_ranks_is_refused(folder: Path) -> None:
    """Kind 1: transformers prefers its files, in which nobody looks for a table."""
    (folder / "shard-00001-model-00001-of-00001.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()
    )
    with pytest.raises(UnsupportedError, match="distributed_checkpoint"):
        load(folder, placement="disk")


def test_kind_1_an_adapters_folder_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """Kind 1: its configuration leads transformers to another folder."""
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "some/model"}')
    with pytest.raises(ArgumentError, match=r"adapter alone.*load_adapter"):
        load(tmp_path)


def test_kind_1_tables_are_opened_again_for_the_same_weights_only(
    folder: Path, other: Path, make_checkpoint: Any, tmp_path: Path
) -> None:
    """Kind 1: a pack or a copy of the model's own rows will do, another model's will not."""
    words = by_variant(folder, other)
    for codec in ("keep", "fp8"):
        build_pack(open_source(other), tmp_path / codec, codec=codec)
    ids = torch.arange(50)
    with load(folder, placement="disk", **words) as model:
        expected = model.tables[0].lookup(ids)
        for path in (None, other, tmp_path / "keep"):
            model.close()
            open_tables(model, path, placement="disk")
            assert torch.equal(model.tables[0].lookup(ids), expected)
        open_tables(model, tmp_path / "fp8", placement="disk")
        for path in (folder, make_checkpoint(codec="bf16")):
            with pytest.raises(ArgumentError, match="belong"):
                open_tables(model, path, placement="disk")


# Words that change neither which files are read nor what their tensors are called; all others are
# followed or refused by the tests above, or are no files' (kind 2).
NO_FILES = {
    *("cache_dir", "force_download", "local_files_only", "token", "proxies", "weights_only"),
    *("ignore_mismatched_sizes", "fusion_config", "tqdm_class", "output_loading_info"),
    *("_from_pipeline", "_from_auto", "_commit_hash", "dtype", "torch_dtype", "device_map"),
    *("max_memory", "offload_folder", "offload_buffers", "quantization_config"),
    *("adapter_kwargs", "adapter_name", "generation_config", "distributed_config", "device_mesh"),
    *("tp_plan", "tp_size", "trust_remote_code", "allow_all_kernels", "use_kernels"),
    *("kernel_config", "attn_implementation", "experts_implementation"),
}
FOLLOWED = {"variant", "subfolder", "config", "key_mapping"}


@pytest.mark.needs("transformers_5_24")
def test_kind_1_every_word_of_from_pretrained_was_thought_of() -> None:
    """Kind 1: a word that transformers adds has to be followed, refused or listed above."""
    function = PreTrainedModel.from_pretrained.__func__
    words = set(re.findall(r'kwargs\.pop\(\s*"(\w+)"', inspect.getsource(function)))
    words |= set(inspect.signature(function).parameters)
    words -= {"cls", "pretrained_model_name_or_path", "model_args", "kwargs"}
    assert words == NO_FILES | FOLLOWED | (set(REFUSED) - {"transformers_weights"})


HARMLESS = {"revision": "main", "state_dict": None, "use_safetensors": True, "gguf_file": None,
            "weights_only": False, "local_files_only": True, "subfolder": "", "variant": None,
            "from_tf": True, "low_cpu_mem_usage": True, "force_download": True}  # fmt: skip


def test_kind_1_words_that_change_nothing_are_taken(folder: Path) -> None:
    """Kind 1: a refusal is about values, not about words."""
    oracle = transformers.Qwen4ExpForCausalLM.from_pretrained(folder, **HARMLESS)
    with load(folder, placement="disk", **HARMLESS) as model, torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, oracle(input_ids=IDS).logits)
