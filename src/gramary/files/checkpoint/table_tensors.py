"""The tensors of n-gram tables, picked out of a model's files by name.

Names are those of transformers, under either prefix; shards are numbered, with or without leading
zeros. Every other tensor of the model is left alone. Of a tensor that is there twice, the one that
the index names counts.

Source: `Qwen4ExpTextNGramEmbedding` of Hugging Face transformers 5.24 and its weight conversion
`ngram_embedding.shard_*.weight`.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Any

from gramary.errors import CheckpointError, ScaleError, ShardError
from gramary.files.checkpoint.model_files import INDEX_FILE, ModelFiles
from gramary.files.checkpoint.safetensors_header import TensorEntry, read_header
from gramary.files.checkpoint.strict_json import show

HASH_BUFFERS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")

_TABLE = re.compile(
    r"(?P<prefix>model\.(?:language_model\.)?layers\.(?P<layer>[0-9]{1,9})\.ple\.ple_embedding\.)"
    r"(?P<rest>.*)",
    re.DOTALL,
)
_SHARD = re.compile(r"ngram_embedding\.shard_(?P<number>[0-9]{1,9})\.(?P<kind>weight(?:_scale)?)")
_SCALE = re.compile(r"ngram_embedding\.(?P<kind>weight_scale(?:_2)?)")
# Statistics and a debugging aid that some checkpoints carry.
_IGNORED = re.compile(r"(?:.*\.)?(?:hashstats_[^.]*|token_lookup)(?:\..*)?", re.DOTALL)


@dataclasses.dataclass
class TableTensors:
    """The tensors of one table, as the files have them; nothing about them is checked yet.

    Attributes:
        decoder_layer: the model's layer that uses it, counted from 0 as in the tensors' names.
        prefix: what the tensors' names start with, up to `ple_embedding.`.
        shards: `shard_{i}.weight` by number.
        block_scales: `shard_{i}.weight_scale` by number (nvfp4).
        scales: `weight_scale` (fp8) and `weight_scale_2` (nvfp4) by that name.
        buffers: the hash buffers by name.
        named: those of them that the model's index places where they are.
    """

    decoder_layer: int
    prefix: str
    shards: dict[int, TensorEntry] = dataclasses.field(default_factory=dict)
    block_scales: dict[int, TensorEntry] = dataclasses.field(default_factory=dict)
    scales: dict[str, TensorEntry] = dataclasses.field(default_factory=dict)
    buffers: dict[str, TensorEntry] = dataclasses.field(default_factory=dict)
    named: set[TensorEntry] = dataclasses.field(default_factory=set)

    def entries(self) -> Iterator[TensorEntry]:
        """Yields every tensor of the table, shards first."""
        for group in (self.shards, self.block_scales, self.scales, self.buffers):
            yield from group.values()

    def shard_name(self, number: int, kind: str = "weight") -> str:
        """Returns the full name a shard has in this table."""
        return f"{self.prefix}ngram_embedding.shard_{number}.{kind}"


def collect_tables(files: ModelFiles) -> dict[int, TableTensors]:
    """Returns the tables of a model by decoder layer (counted from 0), from the files' headers.

    Raises:
        ShardError: a shard is there twice and the index does not say which counts, or it is not
            where the index says.
        ScaleError: the same for a scale.
        CheckpointError: a file cannot be read or is malformed, or a tensor of a table has a name
            that belongs to no codec.
    """
    found = _find_tensors(files)
    names_of_files: dict[str, set[str]] = {}
    for each in found:
        names_of_files.setdefault(each.entry.name, set()).add(each.file_name)
    for tensor, name in files.placed.items():
        if _match(tensor) is not None and name not in names_of_files.get(tensor, ()):
            problem = "does not hold it" if os.path.exists(files.folder / name) else "is missing"
            index = files.folder / (files.found_by or INDEX_FILE)
            raise ShardError(
                f"{index}: expected {show(tensor)} in {name}, which {problem}; download it again"
            )
    tables: dict[int, TableTensors] = {}
    # Those that the index names come first: whatever else has their place gives way.
    for each in sorted(found, key=lambda each: not each.is_named):
        _add(tables, each)
    return tables


def is_of_table(name: str) -> bool:
    """Returns whether a tensor of this name, in a model's file, is part of an n-gram table."""
    return _match(name) is not None


@dataclasses.dataclass(frozen=True)
class _Found:
    """A tensor of a table in a file; `is_named` where the index places it in this file."""

    entry: TensorEntry
    match: re.Match[str]
    file_name: str
    is_named: bool


def _find_tensors(files: ModelFiles) -> list[_Found]:
    """Returns every tensor with a name of a table's, in the order of the files."""
    found = []
    for name in files.names:
        path = files.folder / name
        if files.placed and not os.path.exists(path):
            # Whether it is missed shows later.
            continue
        for entry in read_header(path):
            match = _match(entry.name)
            if match is not None:
                found.append(_Found(entry, match, name, files.names_for(entry.name, name)))
    return found


def _match(name: str) -> re.Match[str] | None:
    """Returns the parts of a table tensor's name; None for what is left alone."""
    match = _TABLE.fullmatch(name)
    return match if match and not _IGNORED.fullmatch(match["rest"]) else None


def _add(tables: dict[int, TableTensors], found: _Found) -> None:
    """Puts a tensor into its place in its table; leaves alone what is part of none."""
    entry, match = found.entry, found.match
    decoder_layer = int(match["layer"])
    table = tables.get(decoder_layer) or TableTensors(decoder_layer, match["prefix"])
    place = _place(table, match["rest"])
    if place is None:
        if match["rest"].startswith("ngram_embedding."):
            raise CheckpointError(
                f"{entry.file.path}: {show(entry.name)} belongs to no table encoding gramary reads "
                f"(expected shard_N.weight, shard_N.weight_scale, weight_scale, weight_scale_2)"
            )
        return
    group, key, error = place
    if match["prefix"] != table.prefix:
        if table.named and not found.is_named:
            return
        raise CheckpointError(
            f"{entry.file.path}: expected one name for the table of decoder layer {decoder_layer}, "
            f"found {show(table.prefix)} and {show(match['prefix'])}; remove one"
        )
    if key in group:
        if group[key] in table.named and not found.is_named:
            return
        raise error(
            f"expected one {show(entry.name)}, found {show(group[key].name)} in "
            f"{group[key].file.path} and {show(entry.name)} in {entry.file.path}; remove one, or "
            f"have {INDEX_FILE} name the right one"
        )
    group[key] = entry
    if found.is_named:
        table.named.add(entry)
    tables[decoder_layer] = table


def _place(
    table: TableTensors, rest: str
) -> tuple[dict[Any, TensorEntry], int | str, type[CheckpointError]] | None:
    """Returns where a tensor goes, its key there, and the error of a second one."""
    if shard := _SHARD.fullmatch(rest):
        if shard["kind"] == "weight":
            return table.shards, int(shard["number"]), ShardError
        return table.block_scales, int(shard["number"]), ScaleError
    if scale := _SCALE.fullmatch(rest):
        return table.scales, scale["kind"], ScaleError
    return (table.buffers, rest, CheckpointError) if rest in HASH_BUFFERS else None
