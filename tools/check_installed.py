"""Names what is in .venv that the project's own files do not ask for.

    python -m tools.check_installed

A package that was installed by hand, or that another folder on the path holds, would let the checks
pass on this machine and fail on a fresh one. Asked for are the requirements of pyproject.toml with
every extra, what tools/set_up.sh adds, and what those require in turn.
"""

from __future__ import annotations

import importlib.metadata
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.list_requirements import ROOT, list_build_requirements, list_everything

# What tools/set_up.sh installs beside pyproject.toml's words, and what a new venv comes with.
OF_SET_UP = ("torch", "cmake", "ninja", "pip", "setuptools", "gramary")


def close_over(wanted: Iterable[str], folders: list[str]) -> set[str]:
    """Returns the names of these requirements and of all that they require in turn.

    Args:
        wanted: requirements, as pyproject.toml has them.
        folders: where their distributions are installed; what is not there requires nothing.
    """
    found = {
        canonicalize_name(distribution.name): distribution
        for distribution in importlib.metadata.distributions(path=folders)
    }
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {extra for one, extra in seen if one == name}:
            seen.add((name, extra))
            inner = found[name].requires if name in found else None
            waiting += [
                each
                for each in map(Requirement, inner or ())
                if each.marker is None or each.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in seen}


def find_strangers(wanted: Iterable[str], folders: list[str]) -> list[str]:
    """Returns the distributions in these folders that no requirement asks for."""
    there = {
        canonicalize_name(distribution.name)
        for distribution in importlib.metadata.distributions(path=folders)
    }
    return sorted(there - close_over(wanted, folders))


def find_foreign_folders(path: Iterable[str], own: Iterable[Path]) -> Iterator[str]:
    """Yields the folders of a module path that lie in none of our own."""
    owners = [folder.resolve() for folder in own]
    for entry in path:
        folder = Path(entry).resolve()
        if folder.exists() and not any(folder.is_relative_to(owner) for owner in owners):
            yield entry


def main() -> None:
    """Prints what is there and not asked for; exits with 1 where there is any."""
    paths = sysconfig.get_paths()
    folders = sorted({paths["purelib"], paths["platlib"]})
    wanted = [*list_everything(), *list_build_requirements(), *OF_SET_UP]
    faults = [
        f"{name} is in .venv, and neither pyproject.toml nor tools/set_up.sh asks for it"
        for name in find_strangers(wanted, folders)
    ]
    own = [Path(sys.prefix), ROOT, Path(paths["stdlib"]), Path(paths["platstdlib"])]
    faults += [
        f"modules are found in {folder} too, which is no part of .venv"
        for folder in find_foreign_folders(sys.path, own)
    ]
    if faults:
        raise SystemExit("\n".join([*faults, "make clean, or name what is needed"]))


if __name__ == "__main__":
    main()
