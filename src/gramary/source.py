"""Opening a table wherever it lies."""

from __future__ import annotations

import os

from gramary.checkpoint import find_checkpoints, open_checkpoint
from gramary.errors import ArgumentError
from gramary.row_layout import TableSource


def open_source(path: str | os.PathLike[str], layer: int | None = None) -> TableSource:
    """Returns the table at `path`, described and checked; no storage is allocated.

    Args:
        path: a model's folder (also a snapshot in a hub cache).
        layer: which table, as the dense index among the PLE layers; may be None where there is
            only one.

    Raises:
        ArgumentError: nothing is at `path`, or several tables are and `layer` is None.
        GramaryError: the files are wrong, as `open_checkpoint` says.
    """
    _check_path(path)
    return open_checkpoint(path, layer)


def find_sources(path: str | os.PathLike[str]) -> tuple[TableSource, ...]:
    """Returns every table at `path`, in the order of the PLE layers.

    Raises:
        GramaryError: as `open_source`, for any of them.
    """
    _check_path(path)
    return find_checkpoints(path)


def _check_path(path: str | os.PathLike[str]) -> None:
    if not os.path.isdir(path):
        problem = "is no folder" if os.path.exists(path) else "does not exist"
        raise ArgumentError(
            f"path: expected a model's folder, got {os.fspath(path)!r}, which {problem}; check "
            f"it, or download the model first"
        )
