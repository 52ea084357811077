"""Which safetensors files of a Hugging Face folder make up the model.

The rule is that of transformers, and nothing is guessed beyond it:

1. `model.safetensors`, where there is one, is the whole model.
2. Otherwise `model.safetensors.index.json` names the files. Files that it names are searched
   whole, so that nothing is missed; one that holds no part of the table may be absent.
3. Otherwise every `*.safetensors` file of the folder is taken, as engines do that need no index.

Symbolic links are followed, as a hub cache needs; a name in an index never leaves the folder.
"""

from __future__ import annotations

import dataclasses
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from gramary.checkpoint.safetensors_header import MAX_HEADER_BYTES
from gramary.checkpoint.strict_json import parse_object, show
from gramary.errors import CheckpointError, TableNotFoundError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        folder: the folder they are in.
        names: their paths in the folder, each once, sorted.
        placed: the file an index names for each tensor; empty without an index.
    """

    folder: Path
    names: tuple[str, ...]
    placed: Mapping[str, str]


def find_model_files(folder: Path) -> ModelFiles:
    """Returns the files that hold the weights of the model in `folder`.

    Raises:
        TableNotFoundError: the folder has no safetensors files.
        CheckpointError: the folder or its index cannot be read, or the index is malformed.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise CheckpointError(
            f"{folder}: expected a model's folder: {error.strerror}; check the path, or download "
            f"the model first"
        ) from error
    if SINGLE_FILE in names:
        return ModelFiles(folder, (SINGLE_FILE,), {})
    if INDEX_FILE in names:
        placed = _read_index(folder / INDEX_FILE)
        return ModelFiles(folder, tuple(sorted(set(placed.values()))), placed)
    found = tuple(name for name in names if name.endswith(".safetensors"))
    if not found:
        others = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".gguf"))]
        kind = f"only {', '.join(others[:3])}; convert it to safetensors" if others else "none"
        raise TableNotFoundError(
            f"{folder}: expected {SINGLE_FILE}, {INDEX_FILE} or other *.safetensors files, "
            f"found {kind}"
        )
    for name in found:
        _require_printable(name, folder)
    return ModelFiles(folder, found, {})


def _read_index(path: Path) -> dict[str, str]:
    """Returns the file of every tensor, as the index has it."""
    try:
        facts = path.stat()
        # Anything else may block for ever when it is read.
        if not stat.S_ISREG(facts.st_mode):
            raise CheckpointError(f"{path}: expected a regular file")
        if facts.st_size > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: expected at most {MAX_HEADER_BYTES} bytes")
        content = parse_object(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: no valid index: {error}; download it again") from error
    placed = content.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise CheckpointError(f"{path}: expected a weight_map that names files; download it again")
    for name in placed.values():
        if not _is_inside(name):
            raise CheckpointError(
                f"{path}: expected *.safetensors files inside the folder, got {show(name)}"
            )
        _require_printable(name, path)
    return placed


def _is_inside(name: Any) -> bool:
    if not isinstance(name, str) or not name.endswith(".safetensors"):
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _require_printable(name: str, where: Path) -> None:
    """Refuses names that could not be shown, or would take over the terminal that shows them."""
    if not name.isprintable():
        raise CheckpointError(f"{where}: expected printable file names, got {show(name)}")
