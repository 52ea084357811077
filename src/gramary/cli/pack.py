"""`gramary pack`: a model's n-gram tables as packs, gramary's own table files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gramary.cli.output import say, shown
from gramary.cli.signals import importing

if TYPE_CHECKING:
    from gramary.files.layout import TableSource
    from gramary.files.pack import PackReport, RecodingError


def pack(
    path: Annotated[Path, typer.Argument(help="A model's folder, or a pack to re-code.")],
    out: Annotated[
        Path,
        typer.Argument(help="The pack; for a model of several tables, -0, -1, ... are added."),
    ],
    codec: Annotated[
        str,
        typer.Option(help="keep, fp8, nvfp4 or bf16; all but keep round to nearest even."),
    ] = "keep",
    table_index: Annotated[
        int | None, typer.Option(help="Only this table: its index among the PLE layers.")
    ] = None,
) -> None:
    """Write a model's n-gram tables as packs; an interrupted run goes on where it stopped."""
    with importing():
        from gramary.cli.progress import progress_bar
        from gramary.files.pack import build_pack
        from gramary.files.source import find_sources, open_source

    sources = find_sources(path) if table_index is None else (open_source(path, table_index),)
    for source in sources:
        target = out if len(sources) == 1 else name_for_layer(out, source)
        with progress_bar(f"packing {target.name}") as progress:
            report = build_pack(source, target, codec=codec, progress=progress)
        say(describe_report(report))


def name_for_layer(out: Path, source: TableSource) -> Path:
    """Returns the name of one of several packs: the PLE layer's index before the suffix."""
    return out.with_name(f"{out.stem}-{source.spec.table_index}{out.suffix}")


def describe_report(report: PackReport) -> str:
    """Returns one line that says what became of a pack, and a second one for what it cost."""
    from gramary.placement.grammar import format_bytes

    header = report.header
    size = format_bytes(header.geometry.file_bytes)
    what = {
        "built": f"built {report.num_rows_written:,} rows",
        "resumed": f"resumed, {report.num_rows_written:,} rows were left",
        "reused": "reused, nothing was written",
    }[report.outcome]
    lines = [f"{shown(report.path)}: {what}; {header.codec.name}, {size}"]
    if report.error is not None:
        lines.append(describe_error(report.error))
    return "\n".join(lines)


def describe_error(error: RecodingError) -> str:
    """Returns how far the re-coded values are from the source's."""
    return (
        f"re-coding changed {error.num_values:,} values by at most {error.max_abs:.6g}; relative "
        f"error (rms) {error.relative_rms:.3g}"
    )
