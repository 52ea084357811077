"""Fresh checkouts of this tree with an environment of their own, as a new user would have them."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import ROOT
from tools.environments.environment import NotHereError

# What set-up, builds and tests leave, and what no clone has.
_LEFT_OUT = (".git", ".venv*", "build", "dist", "__pycache__", "*.so", ".*_cache", ".hypothesis")


def find_python(version: str) -> str:
    """Returns an interpreter of this version, on the PATH or among pyenv's.

    Raises:
        NotHereError: there is none.
    """
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        raise NotHereError("the plain environment has this Python")
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    of_pyenv = sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python3"))
    for candidate in (f"python{version}", *of_pyenv):
        if (path := shutil.which(candidate)) and is_python(path, version):
            return path
    raise NotHereError(f"no python{version} on the PATH, and none of pyenv's")


def is_python(path: str, version: str) -> bool:
    """Returns whether a program is a Python of this version.

    pyenv puts a python3.13 on the PATH that may only say that there is none.
    """
    probe = f"import sys; sys.exit('{version}' != '%d.%d' % sys.version_info[:2])"
    done = subprocess.run([path, "-c", probe], capture_output=True, check=False)
    return done.returncode == 0


def make_checkout(tree: Path, python: str) -> Path:
    """Copies this tree as it is, sets it up as `make test` does, and returns its interpreter.

    What an earlier run has set up is used again, as far as nothing has changed.

    Raises:
        NotHereError: the set-up fails, for want of a package, say.
    """
    tree.mkdir(parents=True, exist_ok=True)
    for entry in tree.iterdir():
        if entry.name not in (".venv", "build"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(
        ROOT, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT), dirs_exist_ok=True, symlinks=True
    )
    set_up = subprocess.run(
        [tree / "tools" / "set_up.sh", "test"], env=os.environ | {"PYTHON": python},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if set_up.returncode:
        lines = [line for line in set_up.stdout.splitlines() if line.strip()]
        raise NotHereError(f"its set-up failed: {' '.join(lines[-3:])}")
    return tree / ".venv" / "bin" / "python"
