"""Where a table's rows go: pure planning over numbers.

Nothing here looks at a machine; `machine` and the table say what is free. Each tier of a placement
takes rows from the first free row on until its budget is full.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from gramary.arguments import require_integer, require_type
from gramary.errors import ArgumentError, CapacityError, PlacementError
from gramary.placement.grammar import TierRequest, format_bytes, parse_placement
from gramary.settings import GIB, Settings

if TYPE_CHECKING:
    from gramary.model.codecs import Codec
    from gramary.model.hashing import HashSpec

# What `auto` leaves free: this part of what it may take, but no more than this many bytes.
_RESERVE_PART = Fraction(8, 100)
_RESERVE_LIMIT = 4 * GIB


@dataclasses.dataclass(frozen=True)
class Extent:
    """A run of rows in one tier.

    Attributes:
        tier: "device", "host" or "disk".
        first_row: the table's row number of the first row.
        num_rows: rows in this extent; a tier that was named and got none has 0.
        nbytes: bytes of these rows.
        reason: in words, what bounded the extent.
        shortfall: bytes the rows need beyond what the tier has free; 0 where they fit.
    """

    tier: str
    first_row: int
    num_rows: int
    nbytes: int
    reason: str
    shortfall: int = 0

    @property
    def end_row(self) -> int:
        """One past the last row."""
        return self.first_row + self.num_rows


@dataclasses.dataclass(frozen=True)
class Placement:
    """Ordered extents that partition a rank's rows, first_row .. end_row - 1.

    Attributes:
        request: the placement as it was asked for.
        first_row: first row of the rank's shard.
        end_row: one past its last row.
        row_bytes: bytes of an encoded row.
        extents: one for each tier named, in order, also those that got no row.
    """

    request: str
    first_row: int
    end_row: int
    row_bytes: int
    extents: tuple[Extent, ...]

    @property
    def num_rows(self) -> int:
        """Rows of the rank's shard."""
        return self.end_row - self.first_row

    @property
    def nbytes(self) -> int:
        """Bytes of the rank's shard."""
        return self.num_rows * self.row_bytes

    @property
    def filled(self) -> tuple[Extent, ...]:
        """The extents that hold at least one row."""
        return tuple(extent for extent in self.extents if extent.num_rows)

    def __repr__(self) -> str:
        """Returns the request and what each tier got, in one line."""
        got = ", ".join(
            f"{extent.num_rows:,} rows ({format_bytes(extent.nbytes)}) {extent.tier}"
            for extent in self.filled
        )
        return f"<gramary.Placement {self.request!r}: {got or 'no rows'}>"

    def extent(self, tier: str) -> Extent | None:
        """Returns the extent of a tier that holds rows, None where it holds none."""
        return next((extent for extent in self.filled if extent.tier == tier), None)

    def report(self) -> tuple[str, ...]:
        """Returns one line for each tier: rows, bytes, and why it got them."""
        return tuple(
            f"{extent.tier:<6} {extent.num_rows:>13,} rows {format_bytes(extent.nbytes):>10}"
            f"  {extent.reason}"
            + (f"; SHORT of {format_bytes(extent.shortfall)}" if extent.shortfall else "")
            for extent in self.extents
        )

    def require_room(self) -> None:
        """Raises where a tier has not the memory for its rows.

        Raises:
            CapacityError: with the numbers of every tier that falls short.
        """
        short = [
            f"{extent.tier} needs {extent.nbytes:,} bytes for {extent.num_rows:,} rows "
            f"({extent.reason}) and has {extent.nbytes - extent.shortfall:,} free"
            for extent in self.extents
            if extent.shortfall
        ]
        if short:
            raise CapacityError(
                f"placement {self.request!r} does not fit: {'; '.join(short)}. Give the tier "
                "fewer bytes and let disk or another tier take the rest"
            )


def shard_range(
    spec: HashSpec, shard: tuple[int, int] = (0, 1), shard_by: str = "rows"
) -> tuple[int, int]:
    """Returns (first row, one past the last row) of a rank's part of a table.

    Args:
        spec: geometry of the table.
        shard: (rank, number of ranks).
        shard_by: "rows": ceil(rows/ranks) each, the last may be short or empty; "heads": an equal
            run of heads each, the last with the padding rows behind them.

    Raises:
        ArgumentError: the shard is no rank of that many, or the heads do not divide.
    """
    is_pair = isinstance(shard, (tuple, list)) and [type(part) for part in shard] == [int, int]
    if not is_pair or not 0 <= shard[0] < shard[1]:
        raise ArgumentError(
            f"shard: expected (rank, size), integers with 0 <= rank < size, got {shard!r}"
        )
    rank, size = shard
    if shard_by == "rows":
        rows_each = -(-spec.num_rows // size)
        return min(rank * rows_each, spec.num_rows), min((rank + 1) * rows_each, spec.num_rows)
    if shard_by != "heads":
        raise ArgumentError(f"shard_by: expected 'rows' or 'heads', got {shard_by!r}")
    if spec.num_heads % size:
        raise ArgumentError(
            f"shard_by='heads': {size} ranks do not divide the table's {spec.num_heads} heads"
        )
    heads_each = spec.num_heads // size
    starts = (*spec.offsets, spec.num_rows)
    return starts[rank * heads_each], starts[(rank + 1) * heads_each]


def require_fitting(spec: HashSpec, codec: Codec) -> None:
    """Raises ArgumentError where a codec's rows are not those of the table."""
    if codec.row_dim != spec.row_dim:
        raise ArgumentError(
            f"codec: expected rows of {spec.row_dim} values like the spec, got {codec.row_dim}"
        )


def plan_placement(
    spec: HashSpec,
    codec: Codec,
    placement: str,
    *,
    free_device: int | None,
    free_host: int,
    kv_bytes: int = 0,
    shard: tuple[int, int] = (0, 1),
    shard_by: str = "rows",
    device_total: int | None = None,
    settings: Settings | None = None,
) -> Placement:
    """Returns which rows go to which tier. Pure: the same numbers give the same plan.

    Args:
        spec: geometry of the table.
        codec: encoding of its rows.
        placement: the placement in the grammar of this module.
        free_device: free bytes of the table's own device; None without a GPU.
        free_host: host bytes one rank may take (`HostRoom.free_bytes`).
        kv_bytes: device bytes that `device=auto` leaves for the engine's caches.
        shard: (rank, number of ranks); sizes are per rank.
        shard_by: "rows" or "heads", see `shard_range`.
        device_total: bytes of the whole device, for the reserve; None takes `free_device`.
        settings: `vram_reserve_gib` and `host_gib` are used; None is the defaults.

    Returns:
        A placement whose extents partition the rank's rows. Rows that were asked for by size or
        by name and exceed what is free are planned all the same, with their shortfall noted:
        `Placement.require_room` refuses them.

    Raises:
        PlacementSyntaxError: the placement does not parse.
        PlacementError: device rows without a GPU, or `host_gib` beside a placement that is not
            device=auto with host.
        CapacityError: the tiers' budgets together are smaller than the rows.
        ArgumentError: an argument is of the wrong type or out of its range, or the codec does
            not fit the spec.
    """
    require_fitting(spec, codec)
    settings = Settings() if settings is None else settings
    require_type("settings", settings, Settings)
    numbers = {"free_host": free_host, "kv_bytes": kv_bytes}
    optional = {"free_device": free_device, "device_total": device_total}
    numbers |= {name: value for name, value in optional.items() if value is not None}
    for name, value in numbers.items():
        require_integer(name, value, 0)
    requests = parse_placement(placement)
    first_row, end_row = shard_range(spec, shard, shard_by)
    total_bytes = (end_row - first_row) * codec.row_bytes
    free = _Free(free_device, free_host, device_total, kv_bytes, settings)
    budgets = (
        [_budget(request, free) for request in requests]
        if settings.host_gib is None
        else _budgets_by_host_gib(requests, settings.host_gib, total_bytes, codec.row_bytes)
    )
    extents = tuple(_fill(budgets, first_row, end_row, codec.row_bytes, free))
    _require_complete(placement, extents, end_row, codec.row_bytes)
    return Placement(placement, first_row, end_row, codec.row_bytes, extents)


@dataclasses.dataclass(frozen=True)
class _Free:
    """What the tiers have free, and what `auto` makes of it."""

    device: int | None
    host: int
    device_total: int | None
    kv_bytes: int
    settings: Settings

    def auto_device(self) -> tuple[int, str]:
        if self.device is None:
            return 0, "auto: no GPU here"
        reserve = _reserve(self.device_total or self.device)
        if self.settings.vram_reserve_gib is not None:
            reserve = int(self.settings.vram_reserve_gib * GIB)
        budget = max(0, self.device - self.kv_bytes - reserve)
        kept = f"{format_bytes(self.kv_bytes)} for caches - {format_bytes(reserve)} reserve"
        return budget, f"auto: {format_bytes(self.device)} free - {kept}"

    def auto_host(self) -> tuple[int, str]:
        reserve = _reserve(self.host)
        reason = f"auto: {format_bytes(self.host)} free - {format_bytes(reserve)} reserve"
        return self.host - reserve, reason

    def shortfall(self, tier: str, nbytes: int) -> int:
        if tier == "disk" or nbytes == 0:
            return 0
        return max(0, nbytes - (self.host if tier == "host" else self.device or 0))


def _reserve(nbytes: int) -> int:
    return min(int(nbytes * _RESERVE_PART), _RESERVE_LIMIT)


# A tier, the bytes it may hold (None: no bound) and why.
_Budget = tuple[str, int | None, str]


def _budget(request: TierRequest, free: _Free) -> _Budget:
    """Returns what one tier may hold by its own request."""
    if request.tier == "disk":
        return request.tier, None, "the rest stays in the files"
    if request.budget == "all":
        return request.tier, None, "all that is left"
    if request.budget == "auto":
        return request.tier, *(free.auto_device() if request.tier == "device" else free.auto_host())
    return request.tier, request.budget, f"{format_bytes(request.budget)} asked for"


def _budgets_by_host_gib(
    requests: tuple[TierRequest, ...], host_gib: float, total_bytes: int, row_bytes: int
) -> list[_Budget]:
    """Returns the budgets where the host's part is set: the device gets all but that."""
    by_tier = {request.tier: request.budget for request in requests}
    if by_tier.get("device") != "auto" or by_tier.get("host") not in ("auto", "all"):
        raise PlacementError(
            f"GRAMARY_HOST_GIB={host_gib:g} (settings.host_gib) sets the host's part of "
            f"'device=auto,host' and conflicts with {','.join(map(str, requests))!r}: unset it, "
            "or give no other size"
        )
    host_bytes = min(total_bytes, int(host_gib * GIB)) // row_bytes * row_bytes
    parts: dict[str, _Budget] = {
        "device": ("device", total_bytes - host_bytes, f"all but GRAMARY_HOST_GIB={host_gib:g}"),
        "host": ("host", host_bytes, f"GRAMARY_HOST_GIB={host_gib:g}"),
        "disk": ("disk", None, "the rest stays in the files"),
    }
    return [parts[request.tier] for request in requests]


def _fill(
    budgets: list[_Budget], first_row: int, end_row: int, row_bytes: int, free: _Free
) -> Iterator[Extent]:
    """Yields the extents: each tier takes rows from the first free one until it is full."""
    row = first_row
    for tier, budget, reason in budgets:
        num_rows = end_row - row
        if budget is not None:
            num_rows = min(num_rows, budget // row_bytes)
        if tier == "device" and num_rows and free.device is None:
            raise PlacementError(
                f"placement gives {num_rows:,} rows to the device, but there is no GPU here "
                "(or the table's device is the CPU); use host or disk, or device=0"
            )
        nbytes = num_rows * row_bytes
        yield Extent(tier, row, num_rows, nbytes, reason, free.shortfall(tier, nbytes))
        row += num_rows


def _require_complete(
    placement: str, extents: tuple[Extent, ...], end_row: int, row_bytes: int
) -> None:
    """Raises where the last tier could not hold the rest."""
    missing = end_row - extents[-1].end_row
    if missing:
        held = "; ".join(f"{e.tier} holds {e.num_rows:,} rows ({e.reason})" for e in extents)
        raise CapacityError(
            f"placement {placement!r} leaves {missing:,} rows ({missing * row_bytes:,} bytes) "
            f"without a place: {held}. Let the last tier take the rest, for example by adding disk"
        )
