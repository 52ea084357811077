"""`gramary doctor`: what works on this machine, and what to do about what does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from gramary.cli.output import say_grid, say_json, shown
from gramary.cli.signals import importing

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
        say_json([dataclasses.asdict(finding) for finding in findings])
        return
    print_findings(findings)


def examine(model: Path | None) -> Iterator[Any]:
    """Yields every finding, in the order of the report.

    Args:
        model: where to try direct reads; None leaves them unknown.

    Raises:
        ArgumentError: `model` does not exist, or has no file to read.
    """
    with importing():
        from gramary.cli import probes
        from gramary.cli.descriptor_room import probe_descriptors
        from gramary.native.instructions import cap_instructions
        from gramary.settings import Settings

    settings = Settings.from_env()
    cap_instructions(settings.instructions)
    yield from probes.probe_versions()
    yield from probes.probe_build()
    yield from probes.probe_memory(settings)
    yield from probes.probe_reading(model)
    yield from probe_descriptors(model, settings)
    yield from probes.probe_gpus(settings)
    yield from probes.probe_placements(settings)


def print_findings(findings: list[Any]) -> None:
    """Prints the report, a table for each section, remedies below what they mend."""
    from rich.table import Table
    from rich.text import Text

    for section, group in groupby(findings, key=lambda finding: finding.section):
        table = Table(title=section, title_justify="left", show_header=False, box=None)
        for finding in group:
            answer = Text(finding.answer, style=COLOURS[finding.answer])
            detail = Text(shown(finding.detail))
            if finding.remedy:
                detail.append(f"\n-> {shown(finding.remedy)}", style="italic")
            table.add_row(Text(f"  {shown(finding.name)}"), answer, detail)
        say_grid(table)
