"""Finds the Pythons of this machine that can build or try a wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST, NEWEST = 11, 15  # of Python 3

_QUESTION = """
import json, os, sys, sysconfig
include = sysconfig.get_path("include")
multiarch = os.path.join("/usr/include", sysconfig.get_config_var("MULTIARCH") or "-",
                         os.path.basename(include))
print(json.dumps({
    "program": sys.executable,
    "version": sys.version_info[:2],
    "is_free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "has_headers": os.path.exists(os.path.join(include, "Python.h")),
    "multiarch_include": multiarch if os.path.exists(multiarch) else None,
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that runs.

    `multiarch_include` is where Debian keeps the part of its headers that a machine decides,
    `/usr/include/x86_64-linux-gnu/python3.11`; None elsewhere.
    """

    program: str
    version: tuple[int, int]
    is_free_threaded: bool
    has_headers: bool
    multiarch_include: str | None


def ask(program: str) -> Interpreter | None:
    """Returns what a program says of itself; None where it is no Python that runs."""
    try:
        said = subprocess.run(
            [program, "-c", _QUESTION], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    facts = json.loads(said)
    return Interpreter(**facts | {"version": tuple(facts["version"])})


def find(names: Iterable[str] = ()) -> list[Interpreter]:
    """Returns the named Pythons, or all of this machine: one a version, the oldest first.

    Without names, those called python3.N on the search path and those that pyenv keeps.

    Raises:
        SystemExit: a named one does not run.
    """
    found: dict[tuple[int, int], Interpreter] = {}
    for name in list(names) or _candidates():
        interpreter = ask(name)
        if interpreter is None and names:
            raise SystemExit(f"{name} is no Python that runs")
        if interpreter is not None and not interpreter.is_free_threaded:
            found.setdefault(interpreter.version, interpreter)
    return [found[version] for version in sorted(found)]


def _candidates() -> Iterator[str]:
    versions = range(OLDEST, NEWEST + 1)
    yield from filter(None, (shutil.which(f"python3.{minor}") for minor in versions))
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for minor in versions:
        yield from map(str, sorted(root.glob(f"versions/3.{minor}.*/bin/python")))
