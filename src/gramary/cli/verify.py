"""`gramary verify`: every byte of a pack, by its checksums and against the model it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gramary.cli.output import say, shown
from gramary.cli.signals import importing


def verify(
    path: Annotated[Path, typer.Argument(metavar="PACK", help="The pack to check.")],
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also compare every row with this model's."),
    ] = None,
) -> None:
    """Check every byte of a pack."""
    with importing():
        from gramary.cli.pack import describe_error
        from gramary.cli.progress import progress_bar
        from gramary.files.pack import open_pack, verify_pack
        from gramary.files.source import find_sources, open_source

    source = None
    if against is not None:
        table_index = open_pack(path).spec.table_index
        is_only = len(find_sources(against)) == 1
        source = open_source(against, None if is_only else table_index)
    with progress_bar(f"checking {path.name}") as progress:
        report = verify_pack(path, against=source, progress=progress)
    rows = f"{report.header.geometry.num_rows:,} rows"
    compared = "" if source is None else f"; all {rows} are those of {shown(source.path)}"
    blocks = f"the header and {report.num_blocks:,} blocks ({rows})"
    say(f"{shown(path)}: {blocks} are right{compared}")
    if report.error is not None:
        say(describe_error(report.error))
