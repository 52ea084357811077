"""`gramary doctor`: what works on this machine, and what to do about what does not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

COLOURS = {"yes": "green", "no": "red", "unknown": "yellow", "": "default"}


def doctor(
    model: Annotated[
        Path | None,
        typer.Option(help="A model's folder or a table's file, to try direct reads there."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Show what each placement can use here: versions, memory, limits, reading, GPUs."""
    findings = list(examine(model))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
        return
    print_findings(findings)


def examine(model: Path | None) -> Iterator[Any]:
    """Yields every finding, in the order of the report.

    Args:
        model: where to try direct reads; None leaves them unknown.

    Raises:
        ArgumentError: `model` does not exist.
    """
    from gramary.cli import probes
    from gramary.errors import ArgumentError
    from gramary.settings import Settings

    if model is not None and not model.exists():
        raise ArgumentError(f"--model: {model} does not exist")
    settings = Settings.from_env()
    yield from probes.probe_versions()
    yield from probes.probe_build()
    yield from probes.probe_memory(settings)
    yield from probes.probe_reading(model)
    yield from probes.probe_gpus(settings)
    yield from probes.probe_placements(settings)


def print_findings(findings: list[Any]) -> None:
    """Prints the report, a table for each section, remedies below what they mend."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(soft_wrap=True)
    for section, group in groupby(findings, key=lambda finding: finding.section):
        table = Table(title=section, title_justify="left", show_header=False, box=None)
        for finding in group:
            answer = Text(finding.answer, style=COLOURS[finding.answer])
            detail = Text(finding.detail)
            if finding.remedy:
                detail.append(f"\n→ {finding.remedy}", style="italic")
            table.add_row(f"  {finding.name}", answer, detail)
        console.print(table)
