"""What another user, whom a test becomes, has to reach."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def open_to_all(folder: Path) -> Iterator[None]:
    """Lets every user into a folder for a while, whatever folders it lies in."""
    modes = {path: path.stat().st_mode for path in (folder, *folder.parents)}
    modes = {path: mode for path, mode in modes.items() if mode & 0o055 != 0o055}
    for path, mode in modes.items():
        path.chmod(mode | 0o055)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
