"""One connector's region in the worker process: mapped, with its disk tiers, until it leaves."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gramary.errors import RowFetchError
from gramary.native import offload as words
from gramary.native.offload import StoreArguments, Tenant
from gramary.offload import ring
from gramary.offload.channel import read_memory_file
from gramary.offload.description import layout_from, num_table_rows, shape_from
from gramary.offload.ring import Ring, ServiceState
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier


class Tenancy:
    """What the worker holds for one connector.

    Life: construct → serve its `tenant` → `ask_to_leave` → once `has_left`, `close`.

    Args:
        descriptors: of the description, the region and the host tiers; read or mapped here, and
            closed by the caller.

    Attributes:
        tenant: what the core's service takes.

    Raises:
        RowFetchError: the engine speaks another version.
        GramaryError, OSError: a file cannot be opened, or memory cannot be mapped.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        description = json.loads(read_memory_file(descriptors[0]))
        if description["version"] != ring.VERSION:
            raise RowFetchError(
                f"the engine speaks version {description['version']} of the ring, this worker "
                f"{ring.VERSION}: install one gramary for both"
            )
        self._memory = descriptors[1:]
        self._mappings: list[np.ndarray[Any, Any]] = []
        self._tiers: list[DiskTier] = []
        settings = Settings(**description["settings"])
        try:
            self._base = self._map(**description["region"])
            stores = tuple(self._open(layer, settings) for layer in description["layers"])
        except BaseException:
            self.close()
            raise
        places = Ring(shape_from(description["shape"])).places()
        self.tenant = Tenant(self._base, places, stores)

    def ask_to_leave(self) -> None:
        """Tells the service to touch nothing of this region any more; returns at once."""
        words.store_u32(self._base + ring.STOP, 1)

    def has_left(self) -> bool:
        """Returns whether the service touches nothing of this region: not any more, or not yet."""
        state = ServiceState(words.load_u32(self._base + ring.SERVICE_STATE))
        return state is not ServiceState.RUNNING

    def close(self) -> None:
        """Closes the files and lets go of the memory."""
        for tier in self._tiers:
            tier.close()
        self._tiers.clear()
        self._mappings.clear()

    def _open(self, layer: dict[str, Any], settings: Settings) -> StoreArguments:
        """Returns what the service needs of one table; opens its disk tier."""
        spec = layer["spec"]
        host, disk = (0, 0, 0), (0, 0, 0)
        if extent := layer.get("host"):
            rows = self._map(extent["descriptor"], extent["num_bytes"])
            host = (rows, extent["first_row"], extent["num_rows"])
        if extent := layer.get("disk"):
            layout = layout_from(extent["layout"])
            tier = DiskTier(layout, extent["first_row"], extent["num_rows"], settings)
            self._tiers.append(tier)
            disk = (tier.reader_address, extent["first_row"], extent["num_rows"])
        constants = {name: tuple(spec[name]) for name in ("multipliers", "sizes", "offsets")}
        return StoreArguments(
            spec["vocab_size"],
            spec["eos_token_id"],
            **constants,
            num_rows=num_table_rows(spec),
            row_bytes=layer["row_bytes"],
            host=host,
            disk=disk,
            is_sent_on=layer["is_sent_on"],
        )

    def _map(self, descriptor: int, num_bytes: int) -> int:
        """Returns the address of the engine's own pages, mapped until `close`."""
        file = self._memory[descriptor]
        is_read_only = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        access = mmap.PROT_READ if is_read_only else mmap.PROT_READ | mmap.PROT_WRITE
        # The array keeps the mapping alive.
        view = np.frombuffer(mmap.mmap(file, num_bytes, mmap.MAP_SHARED, access), np.uint8)
        self._mappings.append(view)
        return int(view.ctypes.data)


__all__ = ["Tenancy"]
