"""From a placement to tiers: measured, planned and checked; then all of it is taken, or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from gramary.errors import ArgumentError, PlacementError
from gramary.files.layout import RowLayout, TableSource
from gramary.machine.memory import HostRoom, numa_node_of_pci, read_host_room
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.placement.grammar import parse_placement
from gramary.placement.plan import Extent, Placement, plan_placement
from gramary.settings import Settings
from gramary.tiers.base import Tier
from gramary.tiers.device import DeviceTier, free_device_bytes
from gramary.tiers.disk import DiskTier
from gramary.tiers.host import HostOptions, HostTier
from gramary.tiers.registration import CudaHostRegistry
from gramary.tiers.residency import Residency
from gramary.tiers.share import SharedMapping, ShareKey


@dataclasses.dataclass(frozen=True)
class StorageRequest:
    """Everything that decides where one table's rows go on this machine.

    Attributes:
        spec: geometry of the table.
        codec: encoding of its rows.
        placement: in the placement grammar.
        device: where results lie; the CPU or a CUDA device with its index.
        kv_bytes: device bytes that `device=auto` leaves for the engine's caches.
        shard: (rank, number of ranks).
        shard_by: "rows" or "heads".
        settings: settings of the table.
        layout: where its rows lie in files; None where they come from elsewhere.
        share: under which name processes share the host rows; None keeps them to this one.
    """

    spec: HashSpec
    codec: Codec
    placement: str
    device: torch.device
    kv_bytes: int
    shard: tuple[int, int]
    shard_by: str
    settings: Settings
    layout: RowLayout | None = None
    share: ShareKey | None = None

    @property
    def is_locking(self) -> bool:
        """Whether host rows are registered with CUDA."""
        return self.device.type == "cuda" and self.settings.pin_host

    @property
    def depends_on_free_memory(self) -> bool:
        """Whether a tier asks for what is free when the plan is made."""
        return any(request.budget == "auto" for request in parse_placement(self.placement))


def resolve_device(device: str | torch.device | None, placement: str) -> torch.device:
    """Returns the device of a table's results, with its index.

    Args:
        device: what the caller asked for; None is the CPU, or the current CUDA device where the
            placement has a device tier that may hold rows.
        placement: in the placement grammar.

    Raises:
        PlacementSyntaxError: the placement does not parse.
        ArgumentError: the device is neither the CPU nor a CUDA device of this machine.
    """
    wants_device = any(
        request.tier == "device" and request.budget != 0 for request in parse_placement(placement)
    )
    if device is None:
        device = "cuda" if wants_device and torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device: expected the CPU or a CUDA device, got {device!r}") from error
    if resolved.type == "cpu":
        return torch.device("cpu")
    if resolved.type != "cuda":
        raise ArgumentError(f"device: expected the CPU or a CUDA device, got {device!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0 or (resolved.index or 0) >= count:
        raise ArgumentError(f"device: {device!r} was asked for, but {count} CUDA devices are here")
    index = torch.cuda.current_device() if resolved.index is None else resolved.index
    return torch.device("cuda", index)


@dataclasses.dataclass(frozen=True)
class FreeMemory:
    """What is free for one table.

    Attributes:
        room: host memory, by bound.
        device_bytes: free bytes of the table's device; None without one.
        device_total: all bytes of that device; None without one.
    """

    room: HostRoom
    device_bytes: int | None = None
    device_total: int | None = None


def measure_free_memory(request: StorageRequest) -> FreeMemory:
    """Returns what the machine has free for a table now.

    Raises:
        UnsupportedError: the machine does not say, and no limit is set.
    """
    room = read_host_room(request.settings)
    if request.device.type != "cuda":
        return FreeMemory(room)
    return FreeMemory(room, *free_device_bytes(request.device))


def plan_storage(request: StorageRequest, free: FreeMemory | None = None) -> Placement:
    """Returns the placement by what is free; nothing is allocated.

    Args:
        request: what decides where the rows go.
        free: what is free; None measures it now.

    Raises:
        PlacementError: as `plan_placement`; also for disk rows of a table without files.
    """
    free = free or measure_free_memory(request)
    placement = plan_placement(
        request.spec,
        request.codec,
        request.placement,
        free_device=free.device_bytes,
        free_host=_free_host_bytes(request, free.room),
        kv_bytes=request.kv_bytes,
        shard=request.shard,
        shard_by=request.shard_by,
        device_total=free.device_total,
        settings=request.settings,
    )
    if request.share is not None:
        _check_shareable(request, placement)
    if request.layout is None and placement.extent("disk") is not None:
        raise PlacementError(
            f"placement {request.placement!r} leaves rows on disk, but this table has no files; "
            "use Table.open, or give device or host the rest"
        )
    return placement


def _free_host_bytes(request: StorageRequest, room: HostRoom) -> int:
    """Returns host bytes that may hold rows; those shared already need not be free."""
    free_bytes = room.free_bytes(locking=request.is_locking)
    return free_bytes + (request.share.shared_bytes() if request.share is not None else 0)


def _check_shareable(request: StorageRequest, placement: Placement) -> None:
    """Raises PlacementError where no rows are shared, or not the same ones in every process."""
    if placement.extent("host") is None:
        raise PlacementError(f"share: placement {request.placement!r} has no host rows to share")
    if request.depends_on_free_memory:
        raise PlacementError(
            f"share: processes must agree on the rows they share, but placement "
            f"{request.placement!r} depends on what is free; give sizes instead of auto"
        )


def build_residency(request: StorageRequest, placement: Placement) -> Residency:
    """Returns a tier for each extent that holds rows; on failure nothing is left taken.

    Raises:
        CapacityError: a tier has not the memory.
        UnsupportedError: host memory cannot be registered.
        RowReadError: a file of the table cannot be opened.
    """
    placement.require_room()
    with contextlib.ExitStack() as undo:
        tiers: dict[str, Any] = {}
        for extent in placement.filled:
            tier = _BUILDERS[extent.tier](request, extent)
            undo.callback(tier.close)
            tiers[extent.tier] = tier
        undo.pop_all()
    return Residency(**tiers)


def _build_device(request: StorageRequest, extent: Extent) -> DeviceTier:
    row_bytes = request.codec.row_bytes
    return DeviceTier(extent.first_row, extent.num_rows, row_bytes, request.device)


def _build_host(request: StorageRequest, extent: Extent) -> HostTier:
    row_bytes, options = request.codec.row_bytes, _host_options(request, extent)
    with contextlib.ExitStack() as undo:
        if options.shared is not None:
            undo.callback(options.shared.close)
        tier = HostTier(extent.first_row, extent.num_rows, row_bytes, request.settings, options)
        undo.pop_all()
    return tier


def _build_disk(request: StorageRequest, extent: Extent) -> DiskTier:
    if request.layout is None:
        raise AssertionError("plan_storage lets no disk rows through without files")
    return DiskTier(request.layout, extent.first_row, extent.num_rows, request.settings)


_BUILDERS: dict[str, Callable[[StorageRequest, Extent], Tier]] = {
    "device": _build_device,
    "host": _build_host,
    "disk": _build_disk,
}


def _host_options(request: StorageRequest, extent: Extent) -> HostOptions:
    with contextlib.ExitStack() as undo:
        shared = None
        if request.share is not None:
            shared = SharedMapping(request.share, extent.first_row, extent.num_rows)
            undo.callback(shared.close)
        options = HostOptions(shared=shared)
        if request.is_locking:
            is_read_only = shared is not None and shared.is_filled
            registry = CudaHostRegistry(request.device.index, is_read_only=is_read_only)
            numa_node = numa_node_of_pci(registry.pci_address())
            options = HostOptions(numa_node=numa_node, registry=registry, shared=shared)
        undo.pop_all()
    return options


def share_key(name: str | None, source: TableSource, settings: Settings) -> ShareKey | None:
    """Returns what the shared rows of a table are called, or None where none are shared.

    Raises:
        ArgumentError: the name cannot be part of a file's name.
    """
    if name is None:
        return None
    versions = tuple(file.version for file in source.layout.files)
    return ShareKey(settings.share_folder, name, source.model_id, source.codec, versions)
