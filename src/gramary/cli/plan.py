"""`gramary plan`: which rows would go where on this machine, and why; nothing is allocated."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gramary.cli.output import say
from gramary.cli.signals import importing
from gramary.errors import ArgumentError

if TYPE_CHECKING:
    from gramary.files.layout import TableSource
    from gramary.placement.plan import Placement
    from gramary.storage.allocation import FreeMemory, StorageRequest

GIB = 1 << 30
# More than any number of ranks has; Python refuses to read numbers of thousands of digits.
MAX_SHARD_CHARACTERS = 32
# A PiB: more than any engine's caches take.
MAX_KV_GIB = 1 << 20


def plan(
    path: Annotated[Path, typer.Argument(help="A model's folder, or a table's file.")],
    placement: Annotated[
        str, typer.Option(help="Tiers in order: device[=SIZE|auto|all], host[=...], disk.")
    ] = "host",
    device: Annotated[
        str | None, typer.Option(help="Where results lie: cpu, cuda, cuda:1.")
    ] = None,
    kv_gib: Annotated[
        float,
        # The range is checked below: typer compares with its bounds, as nan never fails.
        typer.Option(help="GiB that device=auto leaves for the engine's caches."),
    ] = 0.0,
    shard: Annotated[str, typer.Option(help="RANK/SIZE: the part of the table to place.")] = "0/1",
    shard_by: Annotated[
        str, typer.Option(help="How ranks share the table: rows or heads.")
    ] = "rows",
    table_index: Annotated[
        int | None, typer.Option(help="Only this table, by its index among the PLE layers.")
    ] = None,
) -> None:
    """Show which rows would go where here and why, and what would not fit, without allocating."""
    if not 0 <= kv_gib <= MAX_KV_GIB:
        raise ArgumentError(f"--kv-gib: expected GiB from 0 to {MAX_KV_GIB}, got {kv_gib}")
    with importing():
        from gramary.cli.descriptor_room import describe_room, require_descriptors
        from gramary.files.source import find_sources, open_source
        from gramary.settings import Settings
        from gramary.storage.allocation import (
            StorageRequest,
            measure_free_memory,
            plan_storage,
            resolve_device,
        )
        from gramary.storage.descriptor_needs import num_descriptors

    sources = find_sources(path) if table_index is None else (open_source(path, table_index),)
    free = None
    placements = []
    num_files = 0
    for source in sources:
        request = StorageRequest(
            spec=source.spec,
            codec=source.codec,
            placement=placement,
            device=resolve_device(device, placement),
            kv_bytes=int(kv_gib * GIB),
            shard=_parse_shard(shard),
            shard_by=shard_by,
            settings=Settings.from_env(),
            layout=source.layout,
        )
        if free is None:
            free = measure_free_memory(request)
            _print_free(request, free)
        planned = plan_storage(request, free)
        _print_plan(source, planned)
        placements.append(planned)
        filled = [extent.tier for extent in planned.filled]
        num_files += num_descriptors(source.layout, filled, request.settings)
        # Tables are opened one after another: each finds what the ones before it left.
        free = _without(free, planned)
    say(f"\nfile descriptors  {describe_room(num_files)}")
    for planned in placements:
        planned.require_room()
    require_descriptors(num_files)
    options = {"device": device, "kv_gib": kv_gib, "shard": shard, "shard_by": shard_by}
    _print_calls(path, placement, {**options, "table_index": table_index})


def _print_calls(path: Path, placement: str, options: dict[str, Any]) -> None:
    """Prints the call that opens what was planned, and the command that shows it again."""
    defaults = {
        "device": None,
        "kv_gib": 0.0,
        "shard": "0/1",
        "shard_by": "rows",
        "table_index": None,
    }
    given = {name: value for name, value in options.items() if value != defaults[name]}
    words = [
        f" --{name.replace('_', '-')} {_shell_word(str(value))}" for name, value in given.items()
    ]
    arguments = dict(given)
    if "kv_gib" in given:
        arguments["kv_bytes"] = int(arguments.pop("kv_gib") * GIB)
    if "shard" in given:
        arguments["shard"] = _parse_shard(given["shard"])
    call = "".join(f", {name}={value!r}" for name, value in arguments.items())
    say(f"open it with: gramary.Table.open({str(path)!r}, placement={placement!r}{call})")
    named = f"{_shell_word(str(path))} --placement {_shell_word(placement)}"
    say(f"see it again: gramary plan {named}{''.join(words)}")


def _shell_word(text: str) -> str:
    """Returns a shell's word for a text; bytes that do not print are escaped, as bash has it."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = (
        chr(byte) if 0x20 <= byte < 0x7F and chr(byte) not in "'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(text)
    )
    return f"$'{''.join(escaped)}'"


def _parse_shard(text: str) -> tuple[int, int]:
    """Returns (rank, size) of a text such as 0/4."""
    rank, slash, size = text.partition("/")
    if not (slash and rank.isdecimal() and size.isdecimal() and len(text) < MAX_SHARD_CHARACTERS):
        raise ArgumentError(f"--shard: expected RANK/SIZE such as 0/4, got {text!r}")
    return int(rank), int(size)


def _print_free(request: StorageRequest, free: FreeMemory) -> None:
    """Prints what the plan starts from."""
    from gramary.placement.grammar import format_bytes

    locking = request.is_locking
    free_host = format_bytes(free.room.free_bytes(locking=locking))
    say(f"host free    {free_host}  ({free.room.describe(locking=locking)})")
    if free.device_bytes is None or free.device_total is None:
        say("device free  none: results lie on the CPU")
        return
    free_device, total = format_bytes(free.device_bytes), format_bytes(free.device_total)
    say(f"device free  {free_device} of {total} on {request.device}")


def _print_plan(source: TableSource, planned: Placement) -> None:
    """Prints one table's plan, a line a tier."""
    from gramary.placement.grammar import format_bytes

    say(
        f"\ntable {source.spec.table_index}, decoder layer {source.spec.decoder_layer}: "
        f"{source.codec.name}, rows {planned.first_row:,} to {planned.end_row - 1:,}, "
        f"{format_bytes(planned.nbytes)}"
    )
    for line in planned.report():
        say(f"  {line}")


def _without(free: FreeMemory, planned: Placement) -> FreeMemory:
    """Returns what is left once a plan's tiers were allocated."""
    taken = {extent.tier: extent.nbytes for extent in planned.extents}
    host_bytes = taken.get("host", 0) * free.room.local_ranks
    bounds = ("available_bytes", "cgroup_bytes", "lock_bytes", "limit_bytes")
    left = {
        name: max(0, bound - host_bytes)
        for name, bound in ((name, getattr(free.room, name)) for name in bounds)
        if bound is not None
    }
    device_bytes = free.device_bytes
    if device_bytes is not None:
        device_bytes = max(0, device_bytes - taken.get("device", 0))
    room = dataclasses.replace(free.room, **left)
    return dataclasses.replace(free, room=room, device_bytes=device_bytes)
