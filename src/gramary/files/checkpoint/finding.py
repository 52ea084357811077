"""Opening the tables of a Hugging Face folder: find, check, describe."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gramary.errors import (
    ArgumentError,
    CheckpointError,
    HashMismatchError,
    ScaleError,
    ShardError,
    TableNotFoundError,
)
from gramary.files.checkpoint.hash_buffers import check_hash_buffers
from gramary.files.checkpoint.model_files import ModelFiles, find_model_files
from gramary.files.checkpoint.renamed_tensors import describe_renamed
from gramary.files.checkpoint.shard_layout import lay_out_shards
from gramary.files.checkpoint.table_codec import SCALE_OF_CODEC, read_codec
from gramary.files.checkpoint.table_identity import identify_table
from gramary.files.checkpoint.table_tensors import TableTensors, collect_tables
from gramary.files.layout import RowLayout, TableSource
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec, num_ple_layers


def open_checkpoint(folder: str | os.PathLike[str], table_index: int | None = None) -> TableSource:
    """Returns the n-gram table of a model's folder, described and checked, with nothing loaded.

    Only headers, hash buffers and scales are read, and once everything is found right a few rows
    for the table's identity.

    Args:
        folder: a folder as `save_pretrained` writes it, or a snapshot in a hub cache.
        table_index: which table, as the dense index among the PLE layers; may be None where
            there is only one.

    Raises:
        ConfigError: `config.json` is missing or gives no valid geometry.
        TableNotFoundError: the model has no n-gram table, or not the one asked for.
        ArgumentError: there are several tables and `table_index` is None.
        CheckpointError: the files are wrong; ShardError, ScaleError and HashMismatchError say in
            which way.
        RowReadError: a sampled row cannot be read.
    """
    folder = Path(os.path.abspath(folder))
    files = find_model_files(folder)
    specs, tables = _read_tables(files, folder)
    return _describe(files, specs[_choose(len(specs), table_index, folder)], tables)


def find_checkpoints(folder: str | os.PathLike[str]) -> tuple[TableSource, ...]:
    """Returns every n-gram table of a model's folder, in the order of its PLE layers.

    Raises:
        GramaryError: as `open_checkpoint`, for any of them.
    """
    folder = Path(os.path.abspath(folder))
    return describe_tables(find_model_files(folder), folder)


def describe_tables(files: ModelFiles, config: object) -> tuple[TableSource, ...]:
    """Returns every n-gram table in some files, in the order of the PLE layers.

    Args:
        files: the model's files.
        config: its configuration, as `HashSpec.from_config` takes it.

    Raises:
        GramaryError: as `open_checkpoint`, for any of them.
    """
    specs, tables = _read_tables(files, config)
    return tuple(_describe(files, spec, tables) for spec in specs)


def _read_tables(
    files: ModelFiles, config: object
) -> tuple[list[HashSpec], dict[int, TableTensors]]:
    """Returns the geometry of every PLE layer and the tables by decoder layer."""
    folder = files.folder
    specs = [HashSpec.from_config(config, index) for index in range(num_ple_layers(config))]
    if not specs:
        raise TableNotFoundError(
            f"{folder}: expected a model with an n-gram table, but its config.json names no "
            f"ple_layer_ids; choose a Qwen4-Exp model"
        )
    tables = collect_tables(files)
    if set(tables) - {spec.decoder_layer for spec in specs}:
        one_based = [spec.decoder_layer + 1 for spec in specs]
        raise CheckpointError(
            f"{folder}: the files hold n-gram tables of decoder layers {sorted(tables)} (counted "
            f"from 0), but config.json names ple_layer_ids {one_based} (counted from 1); they are "
            f"of different models"
        )
    return specs, tables


def _choose(num_tables: int, table_index: int | None, folder: Path) -> int:
    """Returns the dense index of the table asked for."""
    if table_index is None and num_tables > 1:
        raise ArgumentError(
            f"table_index: expected an index from 0 to {num_tables - 1}, because {folder} has "
            f"{num_tables} n-gram tables, got None"
        )
    index = 0 if table_index is None else table_index
    if type(index) is not int or not 0 <= index < num_tables:
        raise TableNotFoundError(
            f"table_index: expected an index from 0 to {num_tables - 1}, the n-gram tables of "
            f"{folder}, got {table_index!r}"
        )
    return index


def _describe(files: ModelFiles, spec: HashSpec, tables: Mapping[int, TableTensors]) -> TableSource:
    """Returns one table, checked."""
    folder, table = files.folder, tables.get(spec.decoder_layer)
    if table is None or not table.shards:
        raise TableNotFoundError(
            f"{folder}: expected tensors *.layers.{spec.decoder_layer}.ple.ple_embedding."
            f"ngram_embedding.shard_N.weight, as config.json has a table on decoder "
            f"layer {spec.decoder_layer} (ple_layer_ids counts from 1: {spec.decoder_layer + 1}), "
            f"found none; "
            f"{describe_renamed(files) or 'download all files of the model'}"
        )
    try:
        check_hash_buffers(spec, table)
        codec = read_codec(table, spec.row_dim)
        layout = lay_out_shards(table, codec, spec.num_rows)
    except (HashMismatchError, ScaleError, ShardError) as error:
        # What is not found may be there under another name.
        renamed = describe_renamed(files)
        if renamed is None:
            raise
        raise type(error)(f"{error}; {renamed}") from None
    return TableSource(
        path=str(folder),
        kind="checkpoint",
        spec=spec,
        codec=codec,
        layout=layout,
        model_id=identify_table(spec, codec, layout),
        details=_details(folder, table, codec, layout),
    )


def _details(folder: Path, table: TableTensors, codec: Codec, layout: RowLayout) -> dict[str, Any]:
    """Facts for people; values are plain JSON."""
    scale = table.scales.get(SCALE_OF_CODEC.get(codec.name, ""))
    shards_of_files = Counter(shard.file.path for shard in table.shards.values())
    return {
        "prefix": table.prefix,
        "num_shards": len(layout.runs),
        "rows_per_shard": layout.runs[0].num_rows,
        "shards_of_files": {
            os.path.relpath(path, folder): count for path, count in sorted(shards_of_files.items())
        },
        "scale_tensor": scale and scale.name,
        "scale_dtype": scale and scale.dtype,
        "scale_file": scale and os.path.relpath(scale.file.path, folder),
    }
