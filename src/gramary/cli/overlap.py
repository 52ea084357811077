"""`gramary bench overlap`: early requests off and on, checked, timed and drawn."""

from __future__ import annotations

import enum
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer


class Device(enum.StrEnum):
    """Where the stand-in stage computes."""

    cpu = "cpu"
    cuda = "cuda"


def overlap(
    device: Annotated[Device, typer.Option(help="Where the stage computes.")] = Device.cpu,
    placement: Annotated[str, typer.Option(help="Where rows go, e.g. disk or host.")] = "disk",
    model: Annotated[
        Path | None,
        typer.Option(help="A model whose first table is read (default: random rows)."),
    ] = None,
    chunks: Annotated[int | None, typer.Option(min=2, help="Chunks of the prompt.")] = None,
    chunk_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a chunk.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Dense layers of the stage.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each option.")] = 3,
    cold: Annotated[bool, typer.Option(help="Drop the page cache before each run.")] = False,
    smoke: Annotated[bool, typer.Option(help="Small case, seconds; no receipt.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the receipt goes (default: benchmarks/results/).")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Trace file of the last runs, for ui.perfetto.dev.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture of both timelines, e.g. overlap.svg.")
    ] = None,
    tree: Annotated[Path, typer.Option(help="The source tree with benchmarks/.")] = Path(),
) -> None:
    """Run a prompt in chunks with early requests off and on; outputs have to be the same bits."""
    from gramary.errors import ArgumentError

    if not (tree / "benchmarks" / "overlap.py").is_file():
        raise ArgumentError(
            f"--tree: {tree.resolve()} has no benchmarks/overlap.py; benchmarks are part of the "
            "source tree, not of the installed package: run this in a clone of it"
        )
    if plot is not None:
        require_matplotlib()
    given = {
        "--device": device.value, "--placement": placement, "--model": absolute(model),
        "--chunks": chunks, "--chunk-tokens": chunk_tokens, "--layers": layers,
        "--repeats": repeats, "--out": absolute(json), "--trace": absolute(trace),
        "--plot": absolute(plot),
    }  # fmt: skip
    words = [word for name, value in given.items() if value is not None for word in (name, value)]
    flags = [name for name, is_on in (("--cold", cold), ("--smoke", smoke)) if is_on]
    command = [sys.executable, "-m", "benchmarks.overlap", *map(str, words), *flags]
    raise typer.Exit(subprocess.run(command, cwd=tree, check=False).returncode)


def absolute(path: Path | None) -> Path | None:
    """Returns a path that means the same in another folder."""
    return None if path is None else path.absolute()


def require_matplotlib() -> None:
    """Raises DependencyError before minutes of measuring, where the picture could not be drawn."""
    from gramary.errors import DependencyError

    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DependencyError("--plot needs matplotlib: pip install 'gramary[plot]'") from error
