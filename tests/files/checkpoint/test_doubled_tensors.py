"""A tensor in two files: the model's index decides, or it is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gramary.errors import CheckpointError, GramaryError, ScaleError, ShardError
from gramary.files.checkpoint import find_checkpoints, open_checkpoint
from gramary.files.stream import read_rows
from gramary.layer.weights import read_weights

TABLE = "model.layers.1.ple.ple_embedding."
INDEX = "model.safetensors.index.json"

# One of each group of tensors that is picked out of the files, with the error of two of them.
DOUBLED = [
    ("bf16", "ngram_embedding.shard_3.weight", ShardError),
    ("nvfp4", "ngram_embedding.shard_0.weight", ShardError),
    ("nvfp4", "ngram_embedding.shard_11.weight_scale", ScaleError),
    ("nvfp4", "ngram_embedding.weight_scale_2", ScaleError),
    ("fp8", "ngram_embedding.weight_scale", ScaleError),
    ("bf16", "layer_multipliers", CheckpointError),
    ("bf16", "ngram_heads_offsets", CheckpointError),
]


def spoil(tensor: torch.Tensor) -> torch.Tensor:
    """Other values of the same shape and dtype."""
    return (tensor.contiguous().view(-1).view(torch.uint8) ^ 1).view(tensor.dtype).view_as(tensor)


def split(folder: Path, doubled: dict[str, torch.Tensor], keeps: str | None) -> None:
    """Puts a model into `b.safetensors`, and spoilt tensors before and behind it in order.

    Args:
        folder: a model in one file.
        doubled: what `a.safetensors` and `c.safetensors` hold as well.
        keeps: the file that the index names for them; None writes no index.
    """
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "b.safetensors")
    for name in ("a.safetensors", "c.safetensors"):
        save_file({**doubled, name: torch.zeros(1)}, folder / name)
    if keeps is None:
        return
    placed = dict.fromkeys(tensors, "b.safetensors")
    placed |= {name: name for name in ("a.safetensors", "c.safetensors")}
    placed |= {name: keeps for name in doubled if name in placed}
    (folder / INDEX).write_text(json.dumps({"weight_map": placed}))


def everything(folder: Path) -> tuple[torch.Tensor, object]:
    source = open_checkpoint(folder)
    rows = torch.empty(source.layout.num_rows, source.layout.row_bytes, dtype=torch.uint8)
    read_rows(source.layout, 0, len(rows), rows)
    return rows, (source.codec, source.model_id)


@pytest.mark.behaviour(16)
@pytest.mark.parametrize(("codec", "name", "error"), DOUBLED)
def test_kind_6_the_index_decides_and_without_it_none_counts(
    copy_checkpoint: Callable[..., Path], codec: str, name: str, error: type[GramaryError]
) -> None:
    """Kind 6, behaviour 16: whichever order the files come in."""
    folder = copy_checkpoint(codec=codec)
    rows, facts = everything(folder)
    right = load_file(folder / "model.safetensors")[TABLE + name]
    split(folder, {TABLE + name: spoil(right)}, keeps="b.safetensors")
    found, found_facts = everything(folder)
    assert torch.equal(found, rows)
    assert found_facts == facts
    assert len(find_checkpoints(folder)) == 1
    (folder / INDEX).unlink()
    with pytest.raises(error, match=r"expected one .* remove one, or have .* name the right one"):
        open_checkpoint(folder)


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("keeps", ["a.safetensors", "c.safetensors"])
def test_kind_6_the_index_names_the_other_file(
    copy_checkpoint: Callable[..., Path], keeps: str
) -> None:
    """Kind 6: it is the index that counts, not the order of names or the larger file."""
    folder, name = copy_checkpoint(codec="bf16"), f"{TABLE}ngram_embedding.shard_3.weight"
    other = spoil(load_file(folder / "model.safetensors")[name])
    rows, _ = everything(folder)
    split(folder, {name: other}, keeps=keeps)
    found, _ = everything(folder)
    first = 3 * len(other)
    assert torch.equal(found[first : first + len(other)], other.view(torch.uint8))
    assert torch.equal(found[:first], rows[:first])


@pytest.mark.behaviour(16)
def test_kind_6_an_index_that_names_none_of_them_decides_nothing(
    copy_checkpoint: Callable[..., Path],
) -> None:
    """Kind 6: refused as without an index."""
    folder, name = copy_checkpoint(codec="bf16"), f"{TABLE}ngram_embedding.shard_3.weight"
    doubled = load_file(folder / "model.safetensors")[name]
    split(folder, {name: doubled}, keeps="b.safetensors")
    content = json.loads((folder / INDEX).read_text())
    del content["weight_map"][name]
    (folder / INDEX).write_text(json.dumps(content))
    with pytest.raises(ShardError, match="expected one"):
        open_checkpoint(folder)
    # A third file that holds none is no answer either.
    content["weight_map"][name] = "d.safetensors"
    save_file({"other": torch.zeros(1)}, folder / "d.safetensors")
    (folder / INDEX).write_text(json.dumps(content))
    with pytest.raises(ShardError, match="which does not hold it"):
        open_checkpoint(folder)


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("spelling", ["leading zero", "prefix"])
def test_kind_6_a_second_spelling_is_decided_by_the_index(
    copy_checkpoint: Callable[..., Path], spelling: str, is_named: bool
) -> None:
    """Kind 6: a number with a leading zero, or the prefix of a model with images."""
    folder = copy_checkpoint(codec="bf16")
    rows, _ = everything(folder)
    tensors = load_file(folder / "model.safetensors")
    table = {name: spoil(tensor) for name, tensor in tensors.items() if name.startswith(TABLE)}
    if spelling == "prefix":
        doubled = {
            name.replace("model.", "model.language_model.", 1): table[name] for name in table
        }
    else:
        shard = f"{TABLE}ngram_embedding.shard_"
        doubled = {f"{shard}03.weight": table[f"{shard}3.weight"]}
    split(folder, doubled, keeps="b.safetensors" if is_named else None)
    if is_named:
        assert torch.equal(everything(folder)[0], rows)
        return
    with pytest.raises(CheckpointError, match="expected one"):
        open_checkpoint(folder)


def test_kind_6_the_weights_of_a_layer_are_decided_in_the_same_way(
    copy_checkpoint: Callable[..., Path],
) -> None:
    """Kind 6: key_proj and its like are read by the layer, not by the table."""
    folder, name = copy_checkpoint(codec="bf16"), "model.layers.1.ple.key_proj.weight"
    right = load_file(folder / "model.safetensors")[name]
    split(folder, {name: spoil(right)}, keeps="b.safetensors")
    assert torch.equal(read_weights(folder, 1)["key_proj.weight"], right)
    (folder / INDEX).unlink()
    with pytest.raises(CheckpointError, match=r"once, found it in .*; remove one"):
        read_weights(folder, 1)
