"""Commands for tests of the command line, run in this process or in one of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest
from children import run_child

from gramary.cli import main

# How `gramary` begins, with the words of the script as its own.
WHOLE = "from gramary.cli import main; main()"


def run_command(*words: object) -> int:
    """Runs `gramary WORDS` in this process and returns its exit code."""
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    code = left.value.code or 0
    assert isinstance(code, int)
    return code


def run_process(before: str, words: Sequence[object]) -> subprocess.CompletedProcess[str]:
    """Runs `gramary WORDS` in a process of its own, which does something first.

    It is forked from one that has imported gramary, and taken down as an interpreter is.
    """
    return run_child(f"{before}\n{WHOLE}", *words, tears_down=True)
