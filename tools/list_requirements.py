"""Prints requirements of pyproject.toml, one a line: run-time ones and those of named extras.

`list_requirements.py test check` prints the dependencies with the extras `test` and `check`;
`--build` prints what the build needs.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = ROOT / "pyproject.toml"


def list_requirements(extras: list[str]) -> list[str]:
    """Returns the project's dependencies followed by those of the extras; KeyError if unknown."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    needed = list(project["dependencies"])
    for extra in extras:
        needed += project["optional-dependencies"][extra]
    return needed


def list_everything() -> list[str]:
    """Returns the project's dependencies with those of every extra."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    return list_requirements(list(project["optional-dependencies"]))


def list_build_requirements() -> list[str]:
    """Returns what the build backend and the compilation need."""
    return list(tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["build-system"]["requires"])


def main() -> None:
    """Prints what the command line asks for."""
    words = sys.argv[1:]
    print(
        "\n".join(list_build_requirements() if words == ["--build"] else list_requirements(words))
    )


if __name__ == "__main__":
    main()
