"""What a connector is made of: its memory, its service, its device and its lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gramary.arguments import require_integer, require_type
from gramary.errors import ArgumentError, CapacityError, DependencyError
from gramary.machine.memory import read_host_room, require_room
from gramary.offload.giving_up.quarantine import Quarantine
from gramary.offload.lanes.direct import DirectLane
from gramary.offload.lanes.host_lane import HostLane, HostRequests
from gramary.offload.lanes.lane import Lanes
from gramary.offload.lanes.slot_lane import SlotParts
from gramary.offload.lanes.stream_lane import StreamLane
from gramary.offload.memory.region import Region
from gramary.offload.memory.ring import Ring, RingShape
from gramary.offload.service.base import Service, ThreadService
from gramary.offload.service.process import ProcessService
from gramary.offload.service.stores import store_arguments
from gramary.settings import Settings
from gramary.table import Table
from gramary.tiers.registration import CudaHostRegistry
from gramary.tracing import SpanLog

if TYPE_CHECKING:
    from gramary.offload.cuda.device import CudaDevice

# Host-lane batches whose inputs are kept at once, for each slot.
INPUTS_PER_SLOT = 8

# More than any machine serves in a forward; what goes beyond is a mistake of units.
MAX_TOKENS = 1 << 24
MAX_SLOTS = 1 << 10

_LESS = "give max_tokens or num_slots a smaller number"

# Streams that may request: the main one, one for captures, and two to spare.
NUM_CUDA_STREAMS = 4


def ring_shape(tables: Sequence[Table], max_tokens: int, num_slots: int) -> RingShape:
    """Returns the sizes of the memory that a connector of these tables shares.

    Raises:
        ArgumentError: `max_tokens` or `num_slots` is no number in its range.
    """
    max_tokens = require_integer("max_tokens", max_tokens, 1, MAX_TOKENS)
    num_slots = require_integer("num_slots", num_slots, 1, MAX_SLOTS)
    return RingShape(
        max_tokens=max_tokens,
        max_requests=max_tokens,
        history_length=max(table.spec.history_length for table in tables),
        num_heads=tuple(table.spec.num_heads for table in tables),
        row_bytes=tuple(table.codec.row_bytes for table in tables),
        num_host_slots=num_slots,
        num_stream_slots=NUM_CUDA_STREAMS if tables[0].device.type == "cuda" else 1,
        num_inputs=num_slots * INPUTS_PER_SLOT,
    )


def require_memory(shape: RingShape, device: torch.device, settings: Settings) -> None:
    """Compares the memory of a ring with what the machine has free, before any of it is taken.

    Args:
        shape: the ring's sizes.
        device: the tables' device; for a CUDA device the memory is locked.
        settings: `memory_limit_bytes` and `local_ranks` are used.

    Raises:
        CapacityError: it would not fit; the message has the numbers.
    """
    require_room(
        f"the slots of a connector with {_sizes(shape)}",
        Ring(shape).num_bytes,
        read_host_room(settings),
        locking=device.type == "cuda",
        remedy=_LESS,
    )


def _sizes(shape: RingShape) -> str:
    return f"max_tokens={shape.max_tokens} and num_slots={shape.num_host_slots}"


def make_region(shape: RingShape, device: torch.device) -> Region:
    """Returns the memory, registered where a GPU reads and writes it.

    Raises:
        CapacityError: the machine refuses so much.
        DependencyError: the package `cuda-bindings` is missing.
        UnsupportedError: CUDA does not register the memory.
    """
    registry = CudaHostRegistry(device.index) if device.type == "cuda" else None
    try:
        return Region(shape, registry)
    except OSError as error:
        raise CapacityError(
            f"{_sizes(shape)}: the machine refused the memory of the slots ({error}); {_LESS}"
        ) from error


def require_worker(worker: object, server: object) -> None:
    """Raises ArgumentError unless there is such a worker, and `server` is None or its address."""
    if worker not in ("thread", "process"):
        raise ArgumentError(f"worker: expected 'thread' or 'process', got {worker!r}")
    if server is None:
        return
    if not isinstance(server, str) or not server:
        raise ArgumentError(f"server: expected RowServer.address, a path, got {server!r}")
    if worker != "process":
        raise ArgumentError(f"server: expected worker='process' beside it, got worker={worker!r}")


def make_service(
    kind: str,
    region: Region,
    tables: Sequence[Table],
    settings: Settings,
    server: str | None = None,
) -> Service:
    """Returns a service for the tables, to be started."""
    if kind == "process":
        return ProcessService(region, tables, settings, server)
    return ThreadService(region, tuple(store_arguments(table) for table in tables), settings)


def make_device(
    region: Region,
    service: Service,
    tables: Sequence[Table],
    settings: Settings,
    quarantine: Quarantine,
) -> CudaDevice | None:
    """Returns the tables' CUDA device, to be started; None for CPU tables.

    Raises:
        CapacityError: the device has not the memory for the slots' ids.
        DependencyError: Triton or `cuda-bindings` is missing.
    """
    device = tables[0].device
    if device.type != "cuda":
        return None
    try:
        from gramary.offload.cuda.device import CudaDevice
        from gramary.offload.cuda.streams import CudaStreams
    except ImportError as error:
        raise DependencyError("CUDA tables need triton: pip install 'gramary[cuda]'") from error
    try:
        return CudaDevice(region, service, tables, settings, quarantine, CudaStreams(device))
    except torch.OutOfMemoryError as error:
        raise CapacityError(
            f"{device} has not the memory for the row ids of a connector with "
            f"{_sizes(region.ring.shape)}: {error}; {_LESS}"
        ) from error


def make_lanes(
    region: Region,
    service: Service,
    tables: Sequence[Table],
    settings: Settings,
    quarantine: Quarantine,
    spans: SpanLog,
    device: CudaDevice | None,
) -> Lanes:
    """Returns the lanes of the tables' device."""
    vocab_size = min(table.spec.vocab_size for table in tables)
    requests = HostRequests(region, vocab_size, quarantine, spans)
    direct = DirectLane(tables)
    if device is None:
        timeout_s = settings.request_timeout_s
        parts = SlotParts(region, service, tuple(tables), timeout_s, quarantine, spans)
        return Lanes(HostLane(requests, parts), StreamLane(parts), direct)
    from gramary.offload.cuda.host_lane import DeviceHostLane
    from gramary.offload.cuda.stream_lane import DeviceStreamLane

    return Lanes(DeviceHostLane(requests, device), DeviceStreamLane(device), direct)


def as_tables(tables: Table | Sequence[Table]) -> tuple[Table, ...]:
    """Returns one table or several as a tuple.

    Raises:
        ArgumentError: there is none, something else is among them, or they are on several devices.
    """
    require_type("tables", tables, Table, list, tuple)
    several = (tables,) if isinstance(tables, Table) else tuple(tables)
    for index, table in enumerate(several):
        require_type(f"tables[{index}]", table, Table)
    if not several:
        raise ArgumentError("tables: expected at least one")
    devices = list(dict.fromkeys(str(table.device) for table in several))
    if len(devices) > 1:
        raise ArgumentError(f"tables: expected all on one device, got {' and '.join(devices)}")
    return several


__all__ = [
    "as_tables",
    "make_device",
    "make_lanes",
    "make_region",
    "make_service",
    "require_memory",
    "require_worker",
    "ring_shape",
]
