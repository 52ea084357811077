"""Opening a table wherever it lies."""

from __future__ import annotations

import os

from gramary.arguments import require_type
from gramary.errors import ArgumentError
from gramary.files.checkpoint import find_checkpoints, open_checkpoint
from gramary.files.layout import TableSource
from gramary.files.pack import open_pack
from gramary.process.descriptor_limit import naming_shortage


@naming_shortage("read the files of a table")
def open_source(path: str | os.PathLike[str], table_index: int | None = None) -> TableSource:
    """Returns the table at `path`, described and checked; no storage is allocated.

    Args:
        path: a model's folder (also a snapshot in a hub cache), or a pack.
        table_index: which table, as the dense index among the PLE layers; may be None where
            there is only one.

    Raises:
        ArgumentError: nothing is at `path`, several tables are and `table_index` is None, or a pack
            holds another table.
        GramaryError: the files are wrong, as `open_checkpoint` and `open_pack` say.
    """
    _check_path(path)
    if os.path.isdir(path):
        return open_checkpoint(path, table_index)
    source = open_pack(path)
    if table_index not in (None, source.spec.table_index):
        raise ArgumentError(
            f"table_index: expected {source.spec.table_index}, the only one in "
            f"{os.fspath(path)}, got {table_index!r}"
        )
    return source


@naming_shortage("read the files of a model's tables")
def find_sources(path: str | os.PathLike[str]) -> tuple[TableSource, ...]:
    """Returns every table at `path`, in the order of the PLE layers.

    Raises:
        GramaryError: as `open_source`, for any of them.
    """
    _check_path(path)
    return find_checkpoints(path) if os.path.isdir(path) else (open_pack(path),)


def _check_path(path: str | os.PathLike[str]) -> None:
    require_type("path", path, str, os.PathLike)
    if not os.path.exists(path):
        raise ArgumentError(
            f"path: expected a model's folder or a pack, got {os.fspath(path)!r}, which does not "
            f"exist; check it, or download the model first"
        )
