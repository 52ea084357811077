"""The worker process: `python -m gramary.offload.worker DESCRIPTOR`.

Started by `gramary.offload.process` alone. It maps what it inherited, opens the files of disk
rows, serves until the region says stop or the engine is gone, and makes no CUDA call.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import signal
import sys
from typing import Any

import numpy as np
import torch

from gramary.errors import RowFetchError
from gramary.native.memory import tensor_at
from gramary.native.offload import RowService, StoreArguments, Tenant
from gramary.offload import ring
from gramary.offload.ring import Ring, RingShape
from gramary.offload.service import num_service_threads
from gramary.row_layout import RowFile, RowLayout, RowPart, RowRun
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier


def main(arguments: list[str]) -> int:
    """Serves the region described by the file behind an inherited descriptor."""
    # The engine's interrupt is the engine's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(int(arguments[0]), "rb") as file:
        description = json.loads(file.read())
    if description["version"] != ring.VERSION:
        raise RowFetchError(
            f"the engine speaks version {description['version']} of the ring, this worker "
            f"{ring.VERSION}: install one gramary for both"
        )
    serve(description)
    return 0


def serve(description: dict[str, Any]) -> None:
    """Runs the service until it is told to stop."""
    settings = Settings(**description["settings"])
    region = map_memory(**description["region"])
    layers = [open_layer(layer, settings) for layer in description["layers"]]
    places = Ring(shape_from(description["shape"])).places()
    service = RowService(
        [Tenant(region.data_ptr(), places, tuple(store for store, _ in layers))],
        poll=settings.poll,
        num_threads=num_service_threads(settings),
    )
    service.run(description["parent"])
    for _, tier in layers:
        if tier is not None:
            tier.close()


def open_layer(layer: dict[str, Any], settings: Settings) -> tuple[StoreArguments, DiskTier | None]:
    """Returns what the service needs of one table, and the disk tier it opened for it."""
    spec = layer["spec"]
    host, disk, tier = (0, 0, 0), (0, 0, 0), None
    if extent := layer.get("host"):
        rows = map_memory(extent["descriptor"], extent["num_bytes"])
        host = (rows.data_ptr(), extent["first_row"], extent["num_rows"])
    if extent := layer.get("disk"):
        layout = layout_from(extent["layout"])
        tier = DiskTier(layout, extent["first_row"], extent["num_rows"], settings)
        disk = (tier.reader_address, extent["first_row"], extent["num_rows"])
    constants = {name: tuple(spec[name]) for name in ("multipliers", "sizes", "offsets")}
    store = StoreArguments(
        spec["vocab_size"],
        spec["eos_token_id"],
        **constants,
        num_rows=num_table_rows(spec),
        row_bytes=layer["row_bytes"],
        host=host,
        disk=disk,
        is_sent_on=layer["is_sent_on"],
    )
    return store, tier


_mappings: list[mmap.mmap] = []


def map_memory(descriptor: int, num_bytes: int) -> torch.Tensor:
    """Returns inherited memory as uint8 [num_bytes], mapped until this process ends."""
    is_read_only = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    access = mmap.PROT_READ if is_read_only else mmap.PROT_READ | mmap.PROT_WRITE
    mapping = mmap.mmap(descriptor, num_bytes, mmap.MAP_SHARED, access)
    _mappings.append(mapping)
    return tensor_at(np.frombuffer(mapping, np.uint8).ctypes.data, num_bytes)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
