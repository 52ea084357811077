"""`gramary bench`: runs the benchmarks of a source tree by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Benchmarks to run (default: all).")
    ] = None,
    smoke: Annotated[bool, typer.Option(help="Small cases, seconds; no receipts.")] = False,
    tree: Annotated[Path, typer.Option(help="The source tree with benchmarks/.")] = Path(),
) -> None:
    """Measure, check, and write receipts to benchmarks/results/."""
    from gramary.errors import ArgumentError

    if not (tree / "benchmarks" / "run.py").is_file():
        raise ArgumentError(
            f"--tree: {tree.resolve()} has no benchmarks/run.py; benchmarks are part of the "
            "source tree, not of the installed package: run this in a clone of it"
        )
    command = [sys.executable, "-m", "benchmarks.run", *(names or [])]
    done = subprocess.run([*command, "--smoke"] if smoke else command, cwd=tree, check=False)
    raise typer.Exit(done.returncode)
