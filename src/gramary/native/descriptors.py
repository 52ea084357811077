"""File descriptors that close themselves, so that no interrupt loses one.

A number that `os.open` returns belongs to nobody until it is stored; these are objects from the
moment on at which the file is open.
"""

from __future__ import annotations

import os

from gramary.native import _core
from gramary.native._core import Descriptor


def open_file(
    path: str | os.PathLike[str], flags: int, mode: int = 0o600, *, folder: Descriptor | None = None
) -> Descriptor:
    """Opens a file as `os.open` does, closed in processes that are started.

    Args:
        path: its name.
        flags: as for `os.open`.
        mode: of a file that is made.
        folder: what a relative path is relative to; None is where the process stands.

    Raises:
        OSError, ValueError: as `os.open`.
    """
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    at = -1 if folder is None else folder.fileno()
    return _core.open_file(encoded, flags, mode, at, os.fspath(path))


def memory_file(name: str) -> Descriptor:
    """Returns an anonymous file in memory.

    Raises:
        OSError: the machine refuses it.
    """
    return _core.memory_file(name)


__all__ = ["Descriptor", "memory_file", "open_file"]
