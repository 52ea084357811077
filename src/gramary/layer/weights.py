"""The weights of a PLE layer in a model's files, without its table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from gramary.errors import CheckpointError
from gramary.files.checkpoint.model_files import ModelFiles, find_model_files
from gramary.files.checkpoint.renamed_tensors import describe_renamed
from gramary.files.checkpoint.safetensors_header import TensorEntry, read_header

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
NAMES = (
    "key_proj.weight",
    "value_proj.weight",
    "norm_key.weight",
    "norm_query.weight",
    "norm_conv.weight",
    "conv1d.weight",
)
# A model with images keeps its text layers one level deeper.
PREFIXES = ("model.language_model.layers.{index}.ple.", "model.layers.{index}.ple.")


def read_weights(folder: str | os.PathLike[str], decoder_layer: int) -> dict[str, torch.Tensor]:
    """Returns the six weights of one PLE layer by their names within it, as they are stored.

    Args:
        folder: a model's folder.
        decoder_layer: the model's layer, counted from 0.

    Raises:
        CheckpointError: the folder or a file is wrong, or a weight is missing, there twice, or of
            a dtype that is no plain float. Of a weight in two files the one counts that the
            model's index names.
    """
    files = find_model_files(Path(folder))
    prefixes = [prefix.format(index=decoder_layer) for prefix in PREFIXES]
    wanted = {prefix + name: name for prefix in prefixes for name in NAMES}
    found: dict[str, TensorEntry] = {}
    named: set[str] = set()
    for entry, is_named in _find(files, wanted):
        name = wanted[entry.name]
        if name in named and not is_named:
            continue
        if name in found:
            raise CheckpointError(
                f"{folder}: expected {name} of decoder layer {decoder_layer} once, found it in "
                f"{found[name].file.path} and {entry.file.path}; remove one, or have the index "
                f"name the right one"
            )
        found[name] = entry
        named |= {name} if is_named else set()
    missing = [name for name in NAMES if name not in found]
    if missing:
        raise CheckpointError(
            f"{folder}: expected {prefixes[-1]}{missing[0]}, found none; decoder layer "
            f"{decoder_layer} has no complete PLE layer, "
            f"{describe_renamed(files) or 'download all files of the model'}"
        )
    return {name: _read(found[name]) for name in NAMES}


def _find(files: ModelFiles, wanted: Mapping[str, str]) -> list[tuple[TensorEntry, bool]]:
    """Returns the wanted tensors and whether the index names their file, those first."""
    found = [
        (entry, files.names_for(entry.name, file))
        for file in files.names
        for entry in read_header(files.folder / file)
        if entry.name in wanted
    ]
    return sorted(found, key=lambda each: not each[1])


def _read(entry: TensorEntry) -> torch.Tensor:
    if entry.dtype not in DTYPES:
        raise CheckpointError(
            f"{entry.file.path}: expected {entry.name} in {', '.join(DTYPES)}, got "
            f"{entry.describe()}; dequantise it and use load_state_dict()"
        )
    data = bytearray(entry.read())
    return torch.frombuffer(data, dtype=DTYPES[entry.dtype]).view(entry.shape)
