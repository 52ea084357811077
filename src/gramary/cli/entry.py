"""The first and the last thing that the command does; nothing here imports more than it must."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from gramary.cli import signals
from gramary.cli.descriptors import fill_closed_descriptors


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and leaves the process.

    Args:
        arguments: words after the program's name; None takes those of the process, and makes its
            signals and its end the command's.

    Raises:
        SystemExit: always; docs/operations.md has the codes.
    """
    if arguments is None:
        signals.take_over()
        fill_closed_descriptors()
    with signals.importing():
        from gramary.cli.app import run
    code = run(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        signals.end_with(code)
    sys.exit(code)


__all__ = ["main"]
