"""Which safetensors files of a Hugging Face folder make up the model.

The rule is that of transformers, and nothing is guessed beyond it:

1. The file or index that `transformers_weights` of `config.json` names, where it names one.
2. Otherwise `model.safetensors`, where there is one, is the whole model.
3. Otherwise `model.safetensors.index.json` names the files. Files that an index names are searched
   whole, so that nothing is missed; one that holds no part of the table may be absent.
4. Otherwise every `*.safetensors` file of the folder is taken, as engines do that need no index.

Symbolic links are followed, as a hub cache needs; a name in an index never leaves the folder.
"""

from __future__ import annotations

import dataclasses
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from gramary.errors import CheckpointError, TableNotFoundError
from gramary.files.checkpoint.safetensors_header import MAX_HEADER_BYTES
from gramary.files.checkpoint.strict_json import parse_object, show
from gramary.model.config import read_weights_name
from gramary.model.foreign_files import HEAD_BYTES, recognise, recognise_path
from gramary.model.foreign_folders import recognise_folder

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
INDEX_SUFFIX = ".safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        folder: the folder they are in.
        names: their paths in the folder, each once, sorted.
        placed: the file an index names for each tensor; empty without an index.
        found_by: the one file, or the index; None where every file of the folder was taken.
    """

    folder: Path
    names: tuple[str, ...]
    placed: Mapping[str, str]
    found_by: str | None = None

    def names_for(self, tensor: str, name: str) -> bool:
        """Whether the index names the file `name` for a tensor: it decides where two hold one."""
        return self.placed.get(tensor) == name


def find_model_files(folder: Path) -> ModelFiles:
    """Returns the files that hold the weights of the model in `folder`.

    Raises:
        GramaryError: as `choose_model_files`.
        ConfigError: `config.json` cannot be read.
    """
    return choose_model_files(folder, named=read_weights_name(folder))


def choose_model_files(
    folder: Path, *, variant: str | None = None, named: str | None = None
) -> ModelFiles:
    """Returns the files that hold the weights of one of the models in `folder`.

    Args:
        folder: the model's folder.
        variant: look for `model.{variant}.safetensors` and `model.safetensors.index.{variant}.json`
            in place of the files without it.
        named: the file or index to take, whatever else is there.

    Raises:
        TableNotFoundError: the folder has no safetensors files, or not those asked for.
        CheckpointError: the folder or its index cannot be read, or the index is malformed.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise CheckpointError(
            f"{folder}: expected a model's folder: {error.strerror}; check the path, or download "
            f"the model first"
        ) from error
    if named is not None:
        return _named_files(folder, named)
    wanted = [_of_variant(name, variant) for name in (SINGLE_FILE, INDEX_FILE)]
    for name in wanted:
        if name in names:
            return _files_by(folder, name, is_index=name == wanted[1])
    if variant is not None:
        raise TableNotFoundError(
            f"{folder}: variant {variant!r} expects {' or '.join(wanted)}, found neither"
        )
    found = tuple(name for name in names if name.endswith(".safetensors"))
    if not found:
        where = recognise_folder(folder)
        if where is not None:
            raise TableNotFoundError(f"{folder}: expected a model's folder, found {where}")
        others = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".gguf"))]
        kind = f"only {', '.join(others[:3])}; convert it to safetensors" if others else "none"
        raise TableNotFoundError(
            f"{folder}: expected {SINGLE_FILE}, {INDEX_FILE} or other *.safetensors files, "
            f"found {kind}"
        )
    for name in found:
        _require_printable(name, folder)
    return ModelFiles(folder, found, {})


def _named_files(folder: Path, name: str) -> ModelFiles:
    """Returns the files of the model that `transformers_weights` names."""
    if not _is_inside(name, (".safetensors", INDEX_SUFFIX)):
        raise CheckpointError(
            f"{folder}: transformers_weights: expected a *.safetensors file or a "
            f"*{INDEX_SUFFIX} inside the folder, got {show(name)}"
        )
    _require_printable(name, folder)
    if not (folder / name).exists():
        raise TableNotFoundError(
            f"{folder}: transformers_weights names {show(name)}, which is missing; download all "
            "files of the model"
        )
    return _files_by(folder, name, is_index=name.endswith(INDEX_SUFFIX))


def _files_by(folder: Path, name: str, *, is_index: bool) -> ModelFiles:
    """Returns the files of the model by its one file or by its index; names are the folder's."""
    if not is_index:
        return ModelFiles(folder, (name,), {}, name)
    placed = _read_index(folder / name)
    return ModelFiles(folder, tuple(sorted(set(placed.values()))), placed, name)


def _of_variant(name: str, variant: str | None) -> str:
    """Returns the name that a file has in a variant, by transformers' rule."""
    if variant is None:
        return name
    stem, _, ending = name.rpartition(".")
    return f"{stem}.{variant}.{ending}"


def _read_index(path: Path) -> dict[str, str]:
    """Returns the file of every tensor, as the index has it."""
    try:
        facts = path.stat()
        # Anything else may block for ever when it is read.
        if not stat.S_ISREG(facts.st_mode):
            raise CheckpointError(f"{path}: expected a regular file")
        if facts.st_size > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: expected at most {MAX_HEADER_BYTES} bytes")
        data = path.read_bytes()
        content = parse_object(data)
    except OSError as error:
        found = recognise_path(path)
        problem = f"expected an index, found {found}" if found else error.strerror
        raise CheckpointError(f"{path}: cannot be read: {problem}") from error
    except ValueError as error:
        found = recognise(data[:HEAD_BYTES], len(data))
        problem = f"expected an index, found {found}" if found else f"no valid index: {error}"
        again = "" if found else "; download it again"
        raise CheckpointError(f"{path}: {problem}{again}") from error
    placed = content.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        found = recognise(data[:HEAD_BYTES], len(data))
        raise CheckpointError(
            f"{path}: expected a weight_map that names files"
            f"{f', found {found}' if found else '; download it again'}"
        )
    for name in placed.values():
        if not _is_inside(name, (".safetensors",)):
            raise CheckpointError(
                f"{path}: expected *.safetensors files inside the folder, got {show(name)}"
            )
        _require_printable(name, path)
    return placed


def _is_inside(name: Any, endings: tuple[str, ...]) -> bool:
    if not isinstance(name, str) or not name.endswith(endings):
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _require_printable(name: str, where: Path) -> None:
    """Refuses names that could not be shown, or would take over the terminal that shows them."""
    if not name.isprintable():
        raise CheckpointError(f"{where}: expected printable file names, got {show(name)}")
