"""What test processes share: made by the first that asks, read by the others."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Content = TypeVar("Content")


def common_folder(base: Path) -> Path:
    """Returns the folder that pytest-xdist's workers have in common, or the only process's own."""
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def make_once(folder: Path, name: str, make: Callable[[], Content]) -> Content:
    """Returns `make()` of the first process that asks; the others wait and read it as JSON."""
    target = folder / f"{name}.json"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            content = json.dumps(make())
            target.write_text(content, encoding="utf-8")
    loaded: Content = json.loads(target.read_text(encoding="utf-8"))
    return loaded
