"""`gramary bench`: runs the benchmarks of a source tree by name."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from gramary.cli.output import say
from gramary.errors import ArgumentError, DependencyError
from gramary.settings import environment_with

PICTURES = (".svg", ".png", ".pdf")
STOP_TIMEOUT_S = 5.0

# Words that this command does not know are a benchmark's own (`overlap --trace FILE`).
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="embed, state, overlap, disk, load, end-to-end, or a module of benchmarks/ "
            "(default: all that this machine can run); a benchmark's own options after its name.",
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="The one peer to compare with: vllm, transformers or torch.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Receipt to write.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture to draw (.svg, .png): times, tiers or timeline.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda (default: a GPU, if one is here).")
    ] = None,
    smoke: Annotated[bool, typer.Option(help="Small cases, seconds; no receipts.")] = False,
    tree: Annotated[Path, typer.Option(help="The source tree with benchmarks/.")] = Path(),
) -> None:
    """Measure, check, and write receipts to benchmarks/results/."""
    if not (tree / "benchmarks" / "run.py").is_file():
        raise ArgumentError(
            f"--tree: {tree.absolute()} has no benchmarks/run.py; benchmarks are part of the "
            "source tree, not of the installed package: run this in a clone of it"
        )
    _require_file("--json", json, ())
    _require_file("--plot", plot, PICTURES)
    if plot is not None:
        _require_matplotlib()
    words = names or []
    chosen = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    command = [sys.executable, "-m", "benchmarks.run", *chosen]
    for option, value in (("--against", against), ("--device", device)):
        command += [option, value] if value else []
    for option, path in (("--json", json), ("--plot", plot)):
        command += [option, str(path.absolute())] if path else []
    command += ["--smoke"] if smoke else []
    command += words[len(chosen) :]
    if any("\0" in word for word in command):
        raise ArgumentError("bench: expected words without a null character")
    raise typer.Exit(run_benchmarks(command, tree))


def run_benchmarks(command: list[str], tree: Path) -> int:
    """Runs the benchmarks in a process of their own and passes on what they print.

    They are a group of processes, and none of them outlives this one's interest.

    Returns:
        Their exit code; 128 and the signal's number where one ended them, as a shell has it.
    """
    variables = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment_with(variables),
        stdout=subprocess.PIPE,
        encoding="utf-8",
        errors="backslashreplace",
        process_group=0,
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                say(line, end="")
        except BaseException:
            _end_group(child)
            raise
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end_group(child: subprocess.Popen[str]) -> None:
    """Ends a process and its children, by force where they take their time."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_TIMEOUT_S)
            return


def _require_file(option: str, path: Path | None, endings: tuple[str, ...]) -> None:
    """Raises ArgumentError where a file could not be written once everything was measured."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ArgumentError(f"{option}: expected a file in a folder that is there, got {path}")
    if endings and path.suffix not in endings:
        expected = " or ".join(endings)
        raise ArgumentError(f"{option}: expected a name that ends in {expected}, got {path}")


def _require_matplotlib() -> None:
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise DependencyError("--plot needs matplotlib: pip install 'gramary[plot]'")
