"""Which files a model's weights come from, and the n-gram tables in those very files.

Rows of one checkpoint beside the weights of another give wrong tokens without an error. So a table
is taken from the files that transformers itself found and is about to read, whatever word, field or
link led it there; what it would read from anywhere else is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gramary.errors import ArgumentError, CheckpointError, UnsupportedError
from gramary.files.checkpoint import describe_tables
from gramary.files.checkpoint.model_files import ModelFiles, choose_model_files
from gramary.files.checkpoint.safetensors_header import read_header
from gramary.files.checkpoint.table_tensors import is_of_table
from gramary.files.layout import TableSource


def find_files(folder: Path, options: Mapping[str, Any], config: object) -> ModelFiles:
    """Returns the files that transformers will read, so that a wrong one is found before it does.

    Args:
        folder: the model's folder, `subfolder` included.
        options: the words for `from_pretrained`.
        config: the configuration that the model's class gets, but for those words.

    Raises:
        TableNotFoundError: the files are not there.
        CheckpointError: they cannot be read, or transformers does not read such a folder.
        ArgumentError: `key_mapping` renames tensors of a table.
    """
    named = options.get("transformers_weights", getattr(config, "transformers_weights", None))
    files = choose_model_files(folder, variant=options.get("variant"), named=named)
    if files.found_by is None:
        raise CheckpointError(
            f"{folder}: expected model.safetensors or model.safetensors.index.json, by which "
            f"transformers finds a model, got {', '.join(files.names[:3])}; add the index, or name "
            "the file with transformers_weights in config.json"
        )
    if options.get("key_mapping"):
        _refuse_renamed_rows(files, options["key_mapping"])
    return files


def tables_read(
    model: Any, state_dict: object, paths: Sequence[str] | None, load_config: Any
) -> tuple[TableSource, ...]:
    """Returns the tables in the files that transformers is about to read, found and checked.

    Args:
        model: the model on the meta device, with its final configuration.
        state_dict: what `_load_pretrained_model` is given: weights that come from no file.
        paths: the files.
        load_config: transformers' `LoadStateDictConfig`.

    Raises:
        UnsupportedError: the weights come from anything but safetensors files.
        GramaryError: as `gramary.files.checkpoint.open_checkpoint`.

    Source: `PreTrainedModel.from_pretrained` of transformers 5.24 (modeling_utils.py).
    """
    others = [path for path in paths or () if not path.endswith(".safetensors")]
    if state_dict is not None or not paths or others:
        raise UnsupportedError(
            f"transformers would read the weights from {', '.join(others) or 'no file'}, and the "
            "n-gram rows are read from the weights' own safetensors files; convert the model, or "
            "leave out what leads it there"
        )
    folder = os.path.join(
        load_config.pretrained_model_name_or_path, load_config.download_kwargs.get("subfolder", "")
    )
    metadata = load_config.sharded_metadata or {}
    files = ModelFiles(
        Path(os.path.abspath(folder)),
        tuple(sorted(os.path.relpath(path, folder) for path in paths)),
        metadata.get("weight_map", {}),
    )
    return describe_tables(files, model.config)


def _refuse_renamed_rows(files: ModelFiles, key_mapping: Mapping[str, str]) -> None:
    """Raises ArgumentError where a mapping of names makes other tensors the table's, or none."""
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [WeightRenaming(source, target) for source, target in key_mapping.items()]
    for file in files.names:
        if not (files.folder / file).exists():
            continue
        for entry in read_header(files.folder / file):
            renamed, _ = rename_source_key(entry.name, renamings, [])
            if renamed != entry.name and (is_of_table(entry.name) or is_of_table(renamed)):
                raise ArgumentError(
                    f"key_mapping: expected one that leaves the n-gram table alone, whose tensors "
                    f"are found by their names in the files; it renames {entry.name} to {renamed}"
                )


__all__ = ["find_files", "tables_read"]
