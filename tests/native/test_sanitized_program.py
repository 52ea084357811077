"""The program that runs under sanitizers is built of all of the core that needs no Python."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
PROGRAM = REPOSITORY / "tests" / "native" / "threads"


def test_every_source_without_python_is_in_the_program() -> None:
    rules = (PROGRAM / "CMakeLists.txt").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'EXCLUDE REGEX "(.+)"\)', rules)
    left_out = re.compile(pattern.replace("\\\\", "\\"))
    for source in (REPOSITORY / "csrc").glob("*/*.cpp"):
        needs_python = includes_nanobind(source)
        assert bool(left_out.search(source.as_posix())) == needs_python, source


def includes_nanobind(source: Path) -> bool:
    """Returns whether a file, or a header of the core that it includes, includes nanobind."""
    text = source.read_text(encoding="utf-8")
    headers = re.findall(r'#include "([\w/]+\.hpp)"', text)
    core = REPOSITORY / "csrc"
    return "<nanobind" in text or any(includes_nanobind(core / header) for header in headers)
