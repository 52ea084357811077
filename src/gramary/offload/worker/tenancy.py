"""One connector's region in the worker process: mapped, with its disk tiers, until it leaves."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from typing import Any

from gramary.errors import RowFetchError
from gramary.model.hashing import HashSpec
from gramary.native.memory import FileMapping
from gramary.native.offload import RowService, StoreArguments, Tenant
from gramary.native.rows import NO_ROWS, RowExtent
from gramary.offload.memory import ring
from gramary.offload.worker.channel import read_memory_file
from gramary.offload.worker.description import layout_from, require_rows, ring_from, spec_from
from gramary.ops._cpu.hash import hasher
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier


class Tenancy:
    """What the worker holds for one connector.

    Life: construct → serve its `tenant`, and say so by `seat` → `ask_to_leave` → once `has_left`,
    `close`. Nothing that decides about memory is read from the region: the engine writes there.

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
        self._mappings: list[FileMapping] = []
        self._tiers: list[DiskTier] = []
        self._service: RowService | None = None
        self._index = 0
        settings = Settings(**description["settings"])
        try:
            # First, which finds the file to be as long as is said: a layout takes memory for it.
            region = self._map(**description["region"], is_region=True)
            layout = ring_from(description)
            if not layout.has_header(region.address):
                raise RowFetchError("description: the first descriptor is of no region")
            stores = tuple(self._open(entry, settings) for entry in description["tables"])
        except BaseException:
            self.close()
            raise
        self.tenant = Tenant(base=region.address, layout=layout, stores=stores, hold=region.hold())

    def seat(self, service: RowService, index: int) -> None:
        """Remembers which service serves it, as which of its tenants."""
        self._service, self._index = service, index

    def ask_to_leave(self) -> None:
        """Tells the service to touch nothing of this region any more; returns at once."""
        if self._service is not None:
            self._service.ask_to_leave(self._index)

    def has_left(self) -> bool:
        """Returns whether the service touches nothing of this region: not any more, or not yet."""
        return self._service is None or self._service.has_left(self._index)

    def close(self) -> None:
        """Closes the files and lets go of the memory."""
        if self._service is not None:
            self._service.forget(self._index)
        for tier in self._tiers:
            tier.close()
        self._tiers.clear()
        for mapping in self._mappings:
            mapping.close()
        self._mappings.clear()

    def _open(self, entry: dict[str, Any], settings: Settings) -> StoreArguments:
        """Returns what the service needs of one table; opens its disk tier."""
        spec, row_bytes = spec_from(entry), int(entry["row_bytes"])
        host, disk, holds = NO_ROWS, NO_ROWS, []
        if extent := entry.get("host"):
            mapping, host = self._map_rows(extent, spec, row_bytes)
            holds.append(mapping.hold())
        if extent := entry.get("disk"):
            tier = self._open_rows(extent, spec, row_bytes, settings)
            disk = tier.extent
            holds.append(tier.hold())
        return StoreArguments(
            hasher=hasher(spec).core,
            num_rows=spec.num_rows,
            row_bytes=row_bytes,
            host=host,
            disk=disk,
            is_sent_on=bool(entry["is_sent_on"]),
            holds=holds,
        )

    def _map_rows(
        self, extent: dict[str, Any], spec: HashSpec, row_bytes: int
    ) -> tuple[FileMapping, RowExtent]:
        """Returns the mapping of a host extent's rows, and where they lie in it."""
        first_row, num_rows = require_rows(extent, spec)
        if num_rows * row_bytes > extent["num_bytes"]:
            raise RowFetchError(
                f"description: {num_rows} rows of {row_bytes} bytes do not lie in "
                f"{extent['num_bytes']} bytes"
            )
        mapping = self._map(extent["descriptor"], extent["num_bytes"], is_region=False)
        return mapping, RowExtent(mapping.address, first_row, num_rows)

    def _open_rows(
        self, extent: dict[str, Any], spec: HashSpec, row_bytes: int, settings: Settings
    ) -> DiskTier:
        """Returns the tier of a disk extent, its files open."""
        first_row, num_rows = require_rows(extent, spec)
        layout = layout_from(extent["layout"])
        if layout.row_bytes != row_bytes:
            raise RowFetchError(
                f"description: expected files with rows of {row_bytes} bytes, got "
                f"{layout.row_bytes}"
            )
        tier = DiskTier(layout, first_row, num_rows, settings)
        self._tiers.append(tier)
        return tier

    def _map(self, descriptor: int, num_bytes: int, *, is_region: bool) -> FileMapping:
        """Returns the engine's own pages, mapped until `close`."""
        if not 0 <= descriptor < len(self._memory):
            raise RowFetchError(
                f"description: descriptor {descriptor} did not come; the worker's limit of open "
                "files (ulimit -n) may be too low"
            )
        file = self._memory[descriptor]
        require_length_stays(file, is_region=is_region)
        mapping = FileMapping(file, num_bytes, is_writable=is_region)
        self._mappings.append(mapping)
        return mapping


def require_length_stays(file: int, *, is_region: bool) -> None:
    """Raises RowFetchError for memory that its engine could make shorter while it is read.

    Reading beyond the end of a mapped file kills the process, and with it the service of every
    rank. Shared host rows lie in a named file of a tmpfs, which cannot be sealed.

    Args:
        file: descriptor of the memory.
        is_region: whether it is a region, which has no name.
    """
    if not is_region and os.fstat(file).st_nlink > 0:
        return
    try:
        is_sealed = bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        is_sealed = False
    if not is_sealed:
        raise RowFetchError(
            "description: expected memory that is sealed against being made shorter "
            "(F_SEAL_SHRINK), got other memory, or a machine that cannot seal it; use "
            "worker='thread' there"
        )


__all__ = ["Tenancy"]
