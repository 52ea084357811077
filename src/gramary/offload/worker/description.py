"""What a worker process must know of a connector: written by the engine, read by the worker.

Descriptors go beside it, in the order in which it counts them: the region's, then host tiers'.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from gramary.errors import RowFetchError
from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun
from gramary.model.hashing import HashSpec
from gramary.offload.memory import ring
from gramary.offload.memory.region import Region
from gramary.offload.memory.ring import Ring, RingShape
from gramary.settings import Settings
from gramary.table import Table
from gramary.tiers.base import Tier

# What a HashSpec is made of; the rest of it follows.
_SPEC_FIELDS = tuple(field.name for field in dataclasses.fields(HashSpec) if field.init)


def describe(
    region: Region, tables: Sequence[Table], settings: Settings
) -> tuple[dict[str, Any], list[int]]:
    """Returns what a worker must know, as JSON values, and the descriptors that it gets."""
    descriptors = [region.descriptor]
    entries = []
    for table in tables:
        entry: dict[str, Any] = {
            "spec": {name: getattr(table.spec, name) for name in _SPEC_FIELDS},
            "row_bytes": table.codec.row_bytes,
            "is_sent_on": table.device.type == "cuda",
        }
        host, disk = table.residency.host, table.residency.disk
        if host is not None:
            memory = {"descriptor": len(descriptors), "num_bytes": host.nbytes}
            entry["host"] = _rows_of(host) | memory
            descriptors.append(host.descriptor)
        if disk is not None:
            layout = dataclasses.asdict(disk.layout)
            for file in layout["files"]:
                # The worker may stand in another folder.
                file["path"] = os.path.abspath(file["path"])
            entry["disk"] = _rows_of(disk) | {"layout": layout}
        entries.append(entry)
    description = {
        "version": ring.VERSION,
        "region": {"descriptor": 0, "num_bytes": region.num_bytes},
        "shape": dataclasses.asdict(region.ring.shape),
        "tables": entries,
        "settings": dataclasses.asdict(settings),
    }
    return description, descriptors


def _rows_of(tier: Tier) -> dict[str, Any]:
    return {"first_row": tier.first_row, "num_rows": tier.num_rows}


def spec_from(entry: dict[str, Any]) -> HashSpec:
    """Returns a table's geometry from JSON values; its hash constants are derived again.

    Raises:
        ConfigError: there is no such geometry.
    """
    return HashSpec(**{name: entry["spec"][name] for name in _SPEC_FIELDS})


def ring_from(description: dict[str, Any]) -> Ring:
    """Returns where everything lies in the region that a description tells of.

    Raises:
        ArgumentError: a size is out of its range.
        RowFetchError: the ring does not fill the region, or is not made for the tables.
    """
    values, num_bytes = description["shape"], description["region"]["num_bytes"]
    lists = {name: tuple(values[name]) for name in ("num_heads", "row_bytes")}
    shape = RingShape(**{**values, **lists})
    entries = description["tables"]
    specs = [spec_from(entry) for entry in entries]
    needed = {
        "num_heads": tuple(spec.num_heads for spec in specs),
        "row_bytes": tuple(entry["row_bytes"] for entry in entries),
        "history_length": max((spec.history_length for spec in specs), default=0),
    }
    for name, value in needed.items():
        if getattr(shape, name) != value:
            raise RowFetchError(
                f"description: expected a ring of {name} {value} (the tables'), got "
                f"{getattr(shape, name)}"
            )
    # Each of them takes a line at least.
    num_entries = shape.num_host_slots + shape.num_stream_slots + shape.num_inputs
    if num_entries * ring.LINE > num_bytes or Ring(shape).num_bytes != num_bytes:
        raise RowFetchError(f"description: the ring does not fill a region of {num_bytes} bytes")
    return Ring(shape)


def require_rows(extent: dict[str, Any], spec: HashSpec) -> tuple[int, int]:
    """Returns an extent's first row and its number of rows.

    Raises:
        RowFetchError: the table has no such rows.
    """
    first_row, num_rows = int(extent["first_row"]), int(extent["num_rows"])
    if first_row < 0 or num_rows < 0 or first_row + num_rows > spec.num_rows:
        raise RowFetchError(
            f"description: expected rows of a table of {spec.num_rows}, got {num_rows} rows from "
            f"row {first_row} on"
        )
    return first_row, num_rows


def layout_from(values: dict[str, Any]) -> RowLayout:
    """Returns a row layout from JSON values."""
    files = [RowFile(**{**file, "identity": tuple(file["identity"])}) for file in values["files"]]
    runs = [
        RowRun(run["first_row"], run["num_rows"], tuple(RowPart(**part) for part in run["parts"]))
        for run in values["runs"]
    ]
    return RowLayout(**{**values, "files": tuple(files), "runs": tuple(runs)})


__all__ = ["describe", "layout_from", "require_rows", "ring_from", "spec_from"]
