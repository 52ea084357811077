"""What a worker process must know of a connector: written by the engine, read by the worker.

Descriptors go beside it, in the order in which it counts them: the region's, then host tiers'.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gramary.offload import ring
from gramary.offload.region import Region
from gramary.offload.ring import RingShape
from gramary.row_layout import RowFile, RowLayout, RowPart, RowRun
from gramary.settings import Settings
from gramary.table import Table
from gramary.tiers.disk import DiskTier
from gramary.tiers.host import HostTier


def describe(
    region: Region, tables: Sequence[Table], settings: Settings
) -> tuple[dict[str, Any], list[int]]:
    """Returns what a worker must know, as JSON values, and the descriptors that it gets."""
    descriptors = [region.descriptor]
    layers = []
    for table in tables:
        layer: dict[str, Any] = {
            "spec": dataclasses.asdict(table.spec),
            "row_bytes": table.codec.row_bytes,
            "is_sent_on": table.device.type == "cuda",
        }
        for tier in table.tiers:
            extent: dict[str, Any] = {"first_row": tier.first_row, "num_rows": tier.num_rows}
            if isinstance(tier, HostTier):
                extent |= {"descriptor": len(descriptors), "num_bytes": tier.nbytes}
                descriptors.append(tier.descriptor)
            elif isinstance(tier, DiskTier):
                extent["layout"] = dataclasses.asdict(tier.layout)
            else:
                continue
            layer[tier.name] = extent
        layers.append(layer)
    description = {
        "version": ring.VERSION,
        "region": {"descriptor": 0, "num_bytes": region.num_bytes},
        "shape": dataclasses.asdict(region.ring.shape),
        "layers": layers,
        "settings": dataclasses.asdict(settings),
    }
    return description, descriptors


def num_table_rows(spec: dict[str, Any]) -> int:
    """Returns the rows of a table, padded as its HashSpec says."""
    multiple: int = spec["rows_multiple"]
    num_hashed: int = sum(spec["sizes"])
    return -(-num_hashed // multiple) * multiple


def shape_from(values: dict[str, Any]) -> RingShape:
    """Returns the ring's shape from JSON values."""
    lists = {name: tuple(values[name]) for name in ("num_heads", "row_bytes")}
    return RingShape(**{**values, **lists})


def layout_from(values: dict[str, Any]) -> RowLayout:
    """Returns a row layout from JSON values."""
    files = [RowFile(f["path"], f["size"], tuple(f["identity"])) for f in values["files"]]
    runs = [
        RowRun(run["first_row"], run["num_rows"], tuple(RowPart(**part) for part in run["parts"]))
        for run in values["runs"]
    ]
    return RowLayout(**{**values, "files": tuple(files), "runs": tuple(runs)})


__all__ = ["describe", "layout_from", "num_table_rows", "shape_from"]
