"""`gramary inspect`: what a model's n-gram tables are, and what placing them would cost here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gramary.cli.output import say_grid, say_json, shown
from gramary.cli.signals import importing

if TYPE_CHECKING:
    from gramary.files.layout import TableSource
    from gramary.settings import Settings

PLACEMENTS = ("device", "device=auto,host", "device=auto,disk", "host", "host=auto,disk", "disk")


def inspect(
    path: Annotated[Path, typer.Argument(help="A model's folder, or a table's file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Show a model's n-gram tables: geometry, encoding, files, and what placements would cost."""
    with importing():
        from gramary.files.source import find_sources
        from gramary.settings import Settings

    described = [describe_table(source, Settings.from_env()) for source in find_sources(path)]
    if as_json:
        say_json({"path": str(path), "tables": described})
        return
    for table in described:
        print_table(table)


def describe_table(source: TableSource, settings: Settings) -> dict[str, Any]:
    """Returns everything there is to say about a table, as plain JSON values.

    Args:
        source: the table.
        settings: decide what is free for placements here.
    """
    spec, codec, layout = source.spec, source.codec, source.layout
    return {
        "path": source.path,
        "kind": source.kind,
        "model_id": source.model_id,
        "geometry": {
            **dataclasses.asdict(spec),
            "num_heads": spec.num_heads,
            "num_hashed_rows": spec.num_hashed_rows,
            "num_rows": spec.num_rows,
        },
        "codec": dataclasses.asdict(codec),
        "row_bytes": codec.row_bytes,
        "token_bytes": codec.row_bytes * spec.num_heads,
        "table_bytes": layout.nbytes,
        "files": [{"path": file.path, "bytes": file.size} for file in layout.files],
        "details": dict(source.details),
        "placements": list(cost_placements(source, settings)),
    }


def cost_placements(source: TableSource, settings: Settings) -> Iterator[dict[str, Any]]:
    """Yields for each usual placement the bytes it takes in each tier and whether it fits here."""
    import torch

    from gramary.machine.memory import read_host_room
    from gramary.placement.plan import plan_placement

    has_gpu = torch.cuda.is_available()
    free_device, device_total = torch.cuda.mem_get_info() if has_gpu else (0, 0)
    room = read_host_room(dataclasses.replace(settings, host_gib=None))
    for request in PLACEMENTS:
        placement = plan_placement(
            source.spec,
            source.codec,
            request,
            free_device=free_device,
            device_total=device_total,
            free_host=room.free_bytes(locking=has_gpu and settings.pin_host),
            settings=dataclasses.replace(settings, host_gib=None),
        )
        short = [extent for extent in placement.extents if extent.shortfall]
        nbytes = {extent.tier: extent.nbytes for extent in placement.extents}
        yield {
            "placement": request,
            **{f"{tier}_bytes": nbytes.get(tier, 0) for tier in ("device", "host", "disk")},
            "fits": not short,
            "missing_bytes": sum(extent.shortfall for extent in short),
            "needs_gpu": nbytes.get("device", 0) > 0 and not has_gpu,
        }


def print_table(described: dict[str, Any]) -> None:
    """Prints one table's description for people."""
    say_grid(_facts(described), _placements(described))


def _facts(described: dict[str, Any]) -> Any:
    """The facts, a name and a value a line."""
    from rich.table import Table
    from rich.text import Text

    from gramary.placement.grammar import format_bytes

    geometry, codec = described["geometry"], described["codec"]
    scale = codec["scale"]
    title = f"n-gram table {geometry['table_index']}, decoder layer {geometry['decoder_layer']}"
    facts = Table(title=title, title_justify="left", show_header=False, box=None)
    lines = {
        described["kind"]: described["path"],
        "rows": f"{geometry['num_rows']:,}, of which {geometry['num_hashed_rows']:,} are hashed to",
        "heads": f"{geometry['num_heads']} ({geometry['heads_per_ngram']} for each of the n-grams "
        f"2 to {geometry['ngram_size']})",
        "row": f"{codec['row_dim']} values in {described['row_bytes']} bytes",
        "token": f"{geometry['num_heads']} rows, {described['token_bytes']:,} bytes",
        "table": f"{format_bytes(described['table_bytes'])} ({described['table_bytes']:,} bytes)",
        "codec": codec["name"] + (f", scale {scale:g}" if scale is not None else ""),
        "hash": f"seed {geometry['seed']}, vocabulary {geometry['vocab_size']:,}, end of sequence "
        f"{geometry['eos_token_id']}",
        "identity": described["model_id"],
        **_lines_of_details(described["details"]),
    }
    for name, value in lines.items():
        facts.add_row(Text(f"  {shown(name)}"), Text(shown(value)))
    return facts


def _lines_of_details(details: dict[str, Any]) -> dict[str, str]:
    """Where the rows and the scale lie; other details as they are."""
    rest = dict(details)
    lines = {}
    if "shards_of_files" in rest:
        files = rest.pop("shards_of_files")
        names = list(files)
        shown = ", ".join(names if len(names) <= 3 else [*names[:2], "...", names[-1]])
        num_shards, num_rows = rest.pop("num_shards"), rest.pop("rows_per_shard")
        lines["shards"] = f"{num_shards} of {num_rows:,} rows in {len(files)} files: {shown}"
        lines["tensors"] = f"{rest.pop('prefix')}ngram_embedding"
        tensor, dtype, file = (rest.pop(f"scale_{key}") for key in ("tensor", "dtype", "file"))
        if tensor is not None:
            lines["scale"] = f"{tensor.rpartition('.')[2]} ({dtype}) in {file}"
    return {**lines, **{name: str(value) for name, value in rest.items()}}


def _placements(described: dict[str, Any]) -> Any:
    """What each placement takes, a row each."""
    from rich.table import Table

    from gramary.placement.grammar import format_bytes

    table = Table(title="placements here", title_justify="left", box=None)
    for column in ("  placement", "device", "host", "disk", "fits"):
        table.add_column(column, justify="left" if column in ("  placement", "fits") else "right")
    for cost in described["placements"]:
        sizes = [cost[f"{tier}_bytes"] for tier in ("device", "host", "disk")]
        verdict = "yes" if cost["fits"] else f"short of {format_bytes(cost['missing_bytes'])}"
        table.add_row(
            f"  {cost['placement']}",
            *(format_bytes(size) if size else "-" for size in sizes),
            "no GPU here" if cost["needs_gpu"] else verdict,
        )
    return table
