"""Folders whose tensors another converter renamed: which names were found, and what to do."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gramary.errors import CheckpointError, HashMismatchError, ScaleError, ShardError
from gramary.files.checkpoint import open_checkpoint
from gramary.layer.weights import read_weights

RENAMINGS = {
    "mlx": lambda name: re.sub(
        r"shard_(\d+)", r"shards.\1", name.replace("model.", "language_model.model.", 1)
    ),
    "prefix": lambda name: f"language_model.{name}",
    "no prefix": lambda name: name.removeprefix("model."),
    "one tensor": lambda name: name.replace("model.layers.1.ple.ple_embedding.", "blk.1.ngram_"),
    "upper case": lambda name: name.replace("ple.ple_embedding.", "PLE.").replace("model.", "M."),
    "other module": lambda name: name.replace("ple_embedding.ngram", "embedding.ngram"),
}


def rename(folder: Path, change: Callable[[str], str], *, index: bool = False) -> list[str]:
    """Renames a model's tensors; returns those names that are new."""
    tensors = load_file(folder / "model.safetensors")
    renamed = {change(name): tensor for name, tensor in tensors.items()}
    if index:
        (folder / "model.safetensors").unlink()
        save_file(renamed, folder / "a.safetensors")
        content = {"weight_map": dict.fromkeys(renamed, "a.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    else:
        save_file(renamed, folder / "model.safetensors")
    return sorted(set(renamed) - set(tensors))


def require_names(error: CheckpointError, names: list[str]) -> None:
    message = str(error)
    assert any(name in message for name in names)
    assert "gramary does not read these names" in message
    assert "docs/checkpoints.md" in message
    assert "download" not in message
    assert len(message) < 1500


@pytest.mark.behaviour(36)
@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("renaming", RENAMINGS)
def test_kind_12_the_names_that_were_found_are_in_the_error(
    copy_checkpoint: Callable[..., Path], renaming: str, index: bool
) -> None:
    """Kind 12, behaviour 36: the folder is complete, so nothing is to be downloaded."""
    folder = copy_checkpoint(codec="fp8")
    names = [name for name in rename(folder, RENAMINGS[renaming], index=index) if "shard" in name]
    with pytest.raises(CheckpointError, match="look like those of a PLE layer") as caught:
        open_checkpoint(folder)
    require_names(caught.value, names)
    assert "12 of this kind" in str(caught.value)


@pytest.mark.behaviour(36)
@pytest.mark.parametrize(
    ("codec", "part", "error"),
    [
        ("fp8", "layer_multipliers", HashMismatchError),
        ("fp8", "weight_scale", ScaleError),
        ("nvfp4", "shard_7.weight_scale", ScaleError),
        ("bf16", "shard_7.weight", ShardError),
    ],
)
def test_kind_12_a_part_that_was_renamed_is_told_too(
    copy_checkpoint: Callable[..., Path], codec: str, part: str, error: type[CheckpointError]
) -> None:
    """Kind 12: shards under their names, what goes with them under others."""
    folder = copy_checkpoint(codec=codec)

    def change(name: str) -> str:
        return f"quantizer.ngram.{part}" if name.endswith(f".{part}") else name

    rename(folder, change)
    with pytest.raises(error, match=r"missing|no such tensor") as caught:
        open_checkpoint(folder)
    assert f"quantizer.ngram.{part}" in str(caught.value)
    assert "gramary does not read these names" in str(caught.value)


def test_kind_12_weights_of_a_layer_that_were_renamed_are_told(
    copy_checkpoint: Callable[..., Path],
) -> None:
    """Kind 12: what the layer reads beside its table."""
    folder = copy_checkpoint(codec="bf16")
    names = rename(folder, RENAMINGS["prefix"])
    with pytest.raises(CheckpointError, match="has no complete PLE layer") as caught:
        read_weights(folder, 1)
    require_names(caught.value, names)


def test_kind_12_a_model_without_such_tensors_is_told_to_download(
    change_tensors: Callable[..., Path],
) -> None:
    """Kind 12: nothing is guessed where nothing looks like a table."""

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".ple_embedding." in name]:
            del tensors[name]

    with pytest.raises(CheckpointError, match="found none; download all files of the model"):
        open_checkpoint(change_tensors(drop))
