"""Planning a placement: pure functions over small numbers."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramary.errors import ArgumentError, CapacityError, PlacementError
from gramary.placement.plan import Placement, plan_placement, shard_range
from gramary.settings import GIB, Settings


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The part of a HashSpec that planning reads."""

    num_rows: int = 1000
    num_heads: int = 4
    offsets: tuple[int, ...] = (0, 251, 502, 753)
    row_dim: int = 5


@dataclasses.dataclass(frozen=True)
class Rows:
    """The part of a Codec that planning reads."""

    row_bytes: int = 10
    row_dim: int = 5


def plan(placement: str, *, spec: Any = None, row_bytes: int = 10, **numbers: Any) -> Placement:
    """Returns a plan for 1000 rows of 10 bytes with much memory free, unless told otherwise."""
    numbers = {"free_device": 1 << 20, "free_host": 1 << 20} | numbers
    return plan_placement(spec or Geometry(), Rows(row_bytes), placement, **numbers)


def rows_of(placement: Placement) -> dict[str, tuple[int, int]]:
    """Returns {tier: (first row, number of rows)}."""
    return {extent.tier: (extent.first_row, extent.num_rows) for extent in placement.extents}


@pytest.mark.parametrize(
    ("placement", "rows"),
    [
        ("host", {"host": (0, 1000)}),
        ("device,host", {"device": (0, 1000), "host": (1000, 0)}),
        ("host=105,disk", {"host": (0, 10), "disk": (10, 990)}),
        ("host=9,disk", {"host": (0, 0), "disk": (0, 1000)}),
        ("device=0,host", {"device": (0, 0), "host": (0, 1000)}),
        ("host=0,device=0,disk", {"host": (0, 0), "device": (0, 0), "disk": (0, 1000)}),
        ("host=3KiB,device,disk", {"host": (0, 307), "device": (307, 693), "disk": (1000, 0)}),
        ("host=1TiB,disk", {"host": (0, 1000), "disk": (1000, 0)}),
        ("device=10000", {"device": (0, 1000)}),
    ],
)  # fmt: skip
def test_tiers_take_rows_in_order(placement: str, rows: dict[str, tuple[int, int]]) -> None:
    assert rows_of(plan(placement)) == rows


@pytest.mark.behaviour(11)
def test_sizes_are_floored_to_whole_rows() -> None:
    """Behaviour 11: a table may be split at any row."""
    for size in range(40):
        [host, disk] = plan(f"host={size},disk").extents
        assert (host.num_rows, host.nbytes) == (size // 10, size // 10 * 10)
        assert disk.first_row == host.num_rows


def test_device_auto_leaves_caches_and_reserve() -> None:
    numbers = {"free_device": 6000, "device_total": 10_000, "kv_bytes": 1000}
    placement = plan("device=auto,host", **numbers)
    assert rows_of(placement)["device"] == (0, 420)  # 6000 - 1000 - 8 % of 10,000
    assert "for caches" in placement.extents[0].reason


def test_the_reserve_stops_at_4_gib() -> None:
    big = Geometry(num_rows=200 * GIB // 1024)
    numbers = {"free_device": 140 * GIB, "device_total": 141 * GIB, "free_host": 1 << 40}
    [device, _] = plan("device=auto,host", spec=big, row_bytes=1024, **numbers).extents
    assert device.nbytes == 136 * GIB


def test_the_reserve_may_be_set() -> None:
    settings = Settings(vram_reserve_gib=0)
    placement = plan("device=auto,host", free_device=5000, settings=settings)
    assert rows_of(placement)["device"] == (0, 500)


def test_device_auto_never_goes_below_zero() -> None:
    placement = plan("device=auto,host", free_device=100, kv_bytes=10**9)
    assert rows_of(placement) == {"device": (0, 0), "host": (0, 1000)}


def test_host_auto_leaves_a_reserve() -> None:
    assert rows_of(plan("host=auto,disk", free_host=1000)) == {"host": (0, 92), "disk": (92, 908)}


def test_device_auto_without_a_gpu_gives_it_no_rows_and_says_so() -> None:
    placement = plan("device=auto,host", free_device=None)
    assert rows_of(placement)["device"] == (0, 0)
    assert "no GPU here" in placement.report()[0]


@pytest.mark.behaviour(13)
@pytest.mark.parametrize("text", ["device", "device=10,host", "device=all,disk", "host=10,device"])
def test_device_rows_without_a_gpu_are_an_error(text: str) -> None:
    """Behaviour 13: an option that cannot be honoured is an error where it is given."""
    with pytest.raises(PlacementError, match="there is no GPU here"):
        plan(text, free_device=None)


def test_no_device_rows_need_no_gpu() -> None:
    for text in ("device=0,host", "host,device", "device=9,host"):
        assert plan(text, free_device=None).extent("device") is None


@pytest.mark.parametrize("text", ["host=9999", "device=10,host=20", "host=auto", "device=auto"])
def test_the_last_tier_must_hold_the_rest(text: str) -> None:
    with pytest.raises(CapacityError, match=r"leaves [\d,]+ rows .* without a place") as error:
        plan(text, free_host=500, free_device=500)
    assert "adding disk" in str(error.value)


def test_host_gib_gives_the_device_all_but_that() -> None:
    table = Geometry(num_rows=4 * GIB // 1024)
    settings = Settings(host_gib=1.5)
    numbers = {"free_device": 3 * GIB, "free_host": 2 * GIB, "settings": settings}
    placement = plan("device=auto,host", spec=table, row_bytes=1024, **numbers)
    assert [extent.nbytes for extent in placement.extents] == [5 * GIB // 2, 3 * GIB // 2]
    with_disk = plan("device=auto,host=auto,disk", spec=table, row_bytes=1024, **numbers)
    assert rows_of(with_disk)["disk"][1] == 0


def test_host_gib_larger_than_the_table_leaves_the_device_nothing() -> None:
    placement = plan("device=auto,host", settings=Settings(host_gib=1.0))
    assert rows_of(placement) == {"device": (0, 0), "host": (0, 1000)}


@pytest.mark.behaviour(13)
@pytest.mark.parametrize(
    "text",
    ["device=1GiB,host", "device=auto,host=1GiB", "host", "device,host", "disk", "device=auto"],
)  # fmt: skip
def test_host_gib_beside_anything_else_is_a_conflict(text: str) -> None:
    """Behaviour 13: a variable that a placement cannot honour is refused, not ignored."""
    with pytest.raises(PlacementError, match=r"GRAMARY_HOST_GIB=2 .* conflicts with"):
        plan(text, settings=Settings(host_gib=2.0))


def test_rows_beyond_what_is_free_are_planned_with_their_shortfall() -> None:
    placement = plan("host", free_host=4000)
    assert placement.extents[0].shortfall == 6000
    assert "SHORT of 5.9 KiB" in placement.report()[0]
    with pytest.raises(CapacityError, match=r"host needs 10,000 bytes .* has 4,000 free"):
        placement.require_room()
    plan("host").require_room()


def test_report_has_a_line_for_each_tier() -> None:
    lines = plan("device=2000,host=auto,disk", free_host=1000).report()
    assert [line.split()[0] for line in lines] == ["device", "host", "disk"]
    assert "200 rows" in lines[0]
    assert "2.0 KiB asked for" in lines[0]


@pytest.mark.parametrize(
    ("shard", "rows"),
    [((0, 1), (0, 10)), ((0, 4), (0, 3)), ((2, 4), (6, 9)), ((3, 4), (9, 10)), ((5, 6), (10, 10)),
     ((11, 12), (10, 10))],
)  # fmt: skip
def test_shards_by_rows(shard: tuple[int, int], rows: tuple[int, int]) -> None:
    assert shard_range(Geometry(num_rows=10), shard) == rows


def test_shards_by_heads_follow_the_offsets() -> None:
    assert shard_range(Geometry(), (0, 2), "heads") == (0, 502)
    assert shard_range(Geometry(), (1, 2), "heads") == (502, 1000)
    assert shard_range(Geometry(), (3, 4), "heads") == (753, 1000)


@pytest.mark.parametrize(
    ("shard", "shard_by", "problem"),
    [((1, 1), "rows", "0 <= rank < size"), ((-1, 2), "rows", "0 <= rank"), ((0, 0), "rows", "rank"),
     ((0, 3), "heads", "3 ranks do not divide the table's 4 heads"),
     ((0, 2), "columns", "expected 'rows' or 'heads', got 'columns'")],
)  # fmt: skip
def test_shard_refusals(shard: tuple[int, int], shard_by: str, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        shard_range(Geometry(), shard, shard_by)


def test_a_shard_is_placed_on_its_own() -> None:
    placement = plan("host=300,disk", shard=(2, 4))
    assert (placement.first_row, placement.end_row, placement.num_rows) == (500, 750, 250)
    assert rows_of(placement) == {"host": (500, 30), "disk": (530, 220)}


def test_an_empty_shard_has_empty_extents() -> None:
    placement = plan("device,host", spec=Geometry(num_rows=3), shard=(3, 4), free_device=None)
    assert placement.num_rows == 0
    assert placement.filled == ()
    placement.require_room()


@pytest.mark.parametrize("name", ["free_device", "free_host", "kv_bytes", "device_total"])
@pytest.mark.parametrize("wrong", [-1, 1000.5, "1000", math.nan, True])
def test_numbers_of_bytes_that_are_none_are_refused(name: str, wrong: object) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}: expected an integer of at least 0, got"):
        plan("host=auto,disk", **{name: wrong})


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^codec: expected rows of 6 values like the spec"):
        plan("host", spec=Geometry(row_dim=6))
    with pytest.raises(ArgumentError, match=r"^settings: expected a Settings, got \{\}"):
        plan("host", settings={})


budgets = st.sampled_from(["", "=auto", "=all"]) | st.integers(0, 20_000).map("={}".format)
memory_tiers = st.permutations(["device", "host"]).flatmap(
    lambda names: st.tuples(*(budgets.map(name.__add__) for name in names))
)


@pytest.mark.behaviour(11)
@given(
    tiers=memory_tiers,
    keep=st.integers(0, 2),
    disk=st.booleans(),
    num_rows=st.integers(4, 3000),
    row_bytes=st.integers(1, 20),
    free_device=st.none() | st.integers(0, 50_000),
    free_host=st.integers(0, 50_000),
    kv_bytes=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 4, 7]),
    rank=st.integers(0, 6),
    shard_by=st.sampled_from(["rows", "heads"]),
    host_gib=st.none() | st.sampled_from([0.0, 1e-6, 1e-5, 1.0]),
)
def test_extents_partition_the_rows(
    tiers: tuple[str, ...], keep: int, disk: bool, num_rows: int, row_bytes: int,
    free_device: int | None, free_host: int, kv_bytes: int, size: int, rank: int, shard_by: str,
    host_gib: float | None,
) -> None:  # fmt: skip
    """Behaviour 11: any plan either partitions the rank's rows in order, or is refused."""
    text = ",".join([*tiers[:keep], *(["disk"] if disk or keep == 0 else [])])
    spec = Geometry(num_rows, 4, (0, 1, 2, 3))
    numbers = {"free_device": free_device, "free_host": free_host, "kv_bytes": kv_bytes}
    settings = Settings(host_gib=host_gib)
    try:
        first_row, end_row = shard_range(spec, (rank, size), shard_by)
        placement = plan(text, spec=spec, row_bytes=row_bytes, shard=(rank, size),
                         shard_by=shard_by, settings=settings, **numbers)  # fmt: skip
    except (PlacementError, ArgumentError):
        return
    row = first_row
    for extent in placement.extents:
        assert extent.first_row == row
        assert extent.num_rows >= 0
        assert extent.nbytes == extent.num_rows * row_bytes
        row = extent.end_row
    assert row == end_row == placement.end_row
    assert [extent.tier for extent in placement.extents] == [
        t.split("=")[0] for t in text.split(",")
    ]
    assert sum(extent.num_rows for extent in placement.filled) == placement.num_rows


@given(num_rows=st.integers(1, 500), size=st.integers(1, 40))
def test_shards_partition_the_table(num_rows: int, size: int) -> None:
    spec = Geometry(num_rows)
    ranges = [shard_range(spec, (rank, size)) for rank in range(size)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == num_rows
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ranges))
