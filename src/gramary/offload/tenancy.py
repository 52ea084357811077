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
from gramary.hashing import HashSpec
from gramary.native import offload as words
from gramary.native.offload import StoreArguments, Tenant
from gramary.offload import ring
from gramary.offload.channel import read_memory_file
from gramary.offload.description import layout_from, require_rows, ring_from, spec_from
from gramary.offload.ring import ServiceState
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
        RowFetchError: the engine speaks another version, or what it describes does not fit what it
            sent: nothing is served then that could read or write beside it.
        GramaryError, OSError: a file cannot be opened, or memory cannot be mapped.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        if not descriptors:
            raise RowFetchError(
                "no descriptors came with the description; the worker's limit of open files "
                "(ulimit -n) may be too low"
            )
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
        ring_places = ring_from(description)
        try:
            self._base = self._map(**description["region"])
            header = ring_places.header()
            if self._mappings[0][: len(header)].tobytes() != header:
                raise RowFetchError("description: the first descriptor is of no region")
            stores = tuple(self._open(layer, settings) for layer in description["layers"])
        except BaseException:
            self.close()
            raise
        self.tenant = Tenant(self._base, ring_places.places(), stores)

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
        spec, row_bytes = spec_from(layer), int(layer["row_bytes"])
        host, disk = (0, 0, 0), (0, 0, 0)
        if extent := layer.get("host"):
            host = self._map_rows(extent, spec, row_bytes)
        if extent := layer.get("disk"):
            disk = self._open_rows(extent, spec, row_bytes, settings)
        return StoreArguments(
            spec.vocab_size,
            spec.eos_token_id,
            spec.multipliers,
            spec.sizes,
            spec.offsets,
            num_rows=spec.num_rows,
            row_bytes=row_bytes,
            host=host,
            disk=disk,
            is_sent_on=bool(layer["is_sent_on"]),
        )

    def _map_rows(
        self, extent: dict[str, Any], spec: HashSpec, row_bytes: int
    ) -> tuple[int, int, int]:
        """Returns a host extent as the core takes it, its rows mapped."""
        first_row, num_rows = require_rows(extent, spec)
        if num_rows * row_bytes > extent["num_bytes"]:
            raise RowFetchError(
                f"description: {num_rows} rows of {row_bytes} bytes do not lie in "
                f"{extent['num_bytes']} bytes"
            )
        return self._map(extent["descriptor"], extent["num_bytes"]), first_row, num_rows

    def _open_rows(
        self, extent: dict[str, Any], spec: HashSpec, row_bytes: int, settings: Settings
    ) -> tuple[int, int, int]:
        """Returns a disk extent as the core takes it, its files open."""
        first_row, num_rows = require_rows(extent, spec)
        layout = layout_from(extent["layout"])
        if layout.row_bytes != row_bytes:
            raise RowFetchError(
                f"description: expected files with rows of {row_bytes} bytes, got "
                f"{layout.row_bytes}"
            )
        tier = DiskTier(layout, first_row, num_rows, settings)
        self._tiers.append(tier)
        return tier.reader_address, first_row, num_rows

    def _map(self, descriptor: int, num_bytes: int) -> int:
        """Returns the address of the engine's own pages, mapped until `close`."""
        if not 0 <= descriptor < len(self._memory):
            raise RowFetchError(
                f"description: descriptor {descriptor} did not come; the worker's limit of open "
                "files (ulimit -n) may be too low"
            )
        file = self._memory[descriptor]
        is_read_only = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        access = mmap.PROT_READ if is_read_only else mmap.PROT_READ | mmap.PROT_WRITE
        # The array keeps the mapping alive.
        view = np.frombuffer(mmap.mmap(file, num_bytes, mmap.MAP_SHARED, access), np.uint8)
        self._mappings.append(view)
        return int(view.ctypes.data)


__all__ = ["Tenancy"]
