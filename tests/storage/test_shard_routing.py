"""Shards, routes and the ledger of written rows, on small integers."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramary.errors import ArgumentError, LoadError, ShardError
from gramary.storage.shard_routing import LoadLedger, ShardOrder, route_rows


@dataclasses.dataclass(frozen=True)
class Holder:
    first_row: int
    end_row: int


def test_a_shard_is_split_at_the_boundaries() -> None:
    holders = [Holder(0, 10), Holder(10, 10), Holder(10, 25)]
    assert list(route_rows(5, 20, holders)) == [(holders[0], 5, 10), (holders[2], 10, 20)]
    assert list(route_rows(10, 11, holders)) == [(holders[2], 10, 11)]
    assert list(route_rows(25, 40, holders)) == []
    assert list(route_rows(7, 7, holders)) == []


@given(
    cuts=st.lists(st.integers(0, 100), max_size=6).map(sorted),
    first=st.integers(0, 120),
    num_rows=st.integers(0, 120),
)
def test_routes_partition_what_the_holders_own(cuts: list[int], first: int, num_rows: int) -> None:
    holders = [Holder(a, b) for a, b in itertools.pairwise(cuts)]
    routed = [
        (row, id(holder))
        for holder, begin, end in route_rows(first, first + num_rows, holders)
        for row in range(begin, end)
    ]
    owned = [
        (row, id(holder))
        for holder in holders
        for row in range(holder.first_row, holder.end_row)
        if first <= row < first + num_rows
    ]
    assert routed == owned


@given(num_rows=st.integers(1, 200), num_shards=st.integers(1, 30), data=st.data())
def test_shards_are_found_in_any_order_when_their_number_is_given(
    num_rows: int, num_shards: int, data: st.DataObject
) -> None:
    each = -(-num_rows // num_shards)
    bounds = [(min(i * each, num_rows), min((i + 1) * each, num_rows)) for i in range(num_shards)]
    order = ShardOrder(num_rows, num_shards)
    for index in data.draw(st.permutations(range(num_shards))):
        first, end = bounds[index]
        assert order.rows_of(index, end - first) == (first, end)


@given(num_rows=st.integers(1, 200), num_shards=st.integers(1, 30), data=st.data())
def test_shards_are_never_misplaced_without_their_number(
    num_rows: int, num_shards: int, data: st.DataObject
) -> None:
    """Either the place is right, or the shard is refused as ambiguous."""
    each = -(-num_rows // num_shards)
    num_full = -(-num_rows // each)
    index = data.draw(st.integers(0, num_full - 1))
    first, end = index * each, min((index + 1) * each, num_rows)
    order = ShardOrder(num_rows)
    try:
        assert order.rows_of(index, end - first) == (first, end)
    except LoadError as error:
        if index == 0 or "num_shards" not in str(error):
            raise


def test_shard_zero_settles_the_size() -> None:
    order = ShardOrder(10)
    assert order.rows_of(0, 4) == (0, 4)
    order.keep(0, 4)
    assert order.rows_of(2, 2) == (8, 10)
    assert order.rows_of(3, 0) == (10, 10)


def test_kind_26_a_shard_that_was_only_looked_at_settles_nothing() -> None:
    order = ShardOrder(10)
    assert order.rows_of(0, 4) == (0, 4)
    assert order.rows_of(0, 5) == (0, 5)
    order.keep(0, 5)
    with pytest.raises(ShardError, match="expected 5 rows"):
        order.rows_of(0, 4)


def test_an_ambiguous_shard_asks_for_the_number() -> None:
    with pytest.raises(LoadError, match=r"load shard 0 first, or give Table.empty num_shards"):
        ShardOrder(10).rows_of(2, 2)
    assert ShardOrder(10, 5).rows_of(2, 2) == (4, 6)
    assert ShardOrder(10, 3).rows_of(2, 2) == (8, 10)


@pytest.mark.parametrize(
    ("num_shards", "index", "num_rows", "problem"),
    [(3, 0, 3, "expected 4 rows"), (3, 2, 4, "expected 2 rows"), (3, 3, 1, "below 3, got 3"),
     (None, 0, 11, "no division of 10 rows"), (None, -1, 2, "at least 0"),
     (None, 9, 2, "no division")],
)  # fmt: skip
def test_misshapen_shards_are_refused(
    num_shards: int | None, index: int, num_rows: int, problem: str
) -> None:
    with pytest.raises(ShardError, match=problem):
        ShardOrder(10, num_shards).rows_of(index, num_rows)


def test_no_shards_are_refused() -> None:
    for num_shards in (0, "3", 1.5):
        with pytest.raises(ArgumentError, match="num_shards"):
            ShardOrder(10, num_shards)
    with pytest.raises(ShardError, match="index"):
        ShardOrder(10).rows_of("0", 5)


@given(
    data=st.data(), num_rows=st.integers(0, 60), cuts=st.sets(st.integers(1, 59), max_size=8)
)  # fmt: skip
def test_the_ledger_counts_every_row_once(
    data: st.DataObject, num_rows: int, cuts: set[int]
) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut < num_rows), num_rows]
    runs = list(itertools.pairwise(bounds))
    ledger = LoadLedger(0, num_rows)
    written: set[int] = set()
    for first, end in data.draw(st.permutations(runs)):
        ledger.add(first, end)
        written |= set(range(first, end))
        assert ledger.num_written == len(written)
        gaps = {row for a, b in ledger.missing() for row in range(a, b)}
        assert gaps == set(range(num_rows)) - written
    ledger.require_complete()


def test_the_ledger_refuses_rows_twice_and_says_which() -> None:
    ledger = LoadLedger(0, 10)
    ledger.add(2, 6)
    with pytest.raises(LoadError, match="rows 5 to 5 were loaded before"):
        ledger.add(5, 8)
    assert ledger.num_written == 4
    with pytest.raises(LoadError, match="6 rows were not loaded, the first of them rows 0 to 1"):
        ledger.require_complete()


def test_rows_of_other_ranks_are_not_counted() -> None:
    ledger = LoadLedger(4, 8)
    ledger.add(0, 6)
    ledger.add(6, 20)
    ledger.add(0, 3)
    ledger.require_complete()
