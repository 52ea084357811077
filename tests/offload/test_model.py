"""Kind 26: a connector against a dictionary; what it refuses changes nothing, the rest is right."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_stage import expected_rows, make_batch, make_table

from gramary import Batch, Connector, Settings, Table
from gramary.errors import GramaryError, SlotsBusyError
from gramary.offload import Ticket

PATIENT = Settings(request_timeout_s=20, num_threads=1)
NUM_SLOTS = 2
NUM_TABLES = 2


@pytest.fixture(scope="module")
def tables() -> Iterator[list[Table]]:
    with make_table("fp8") as first, make_table("bf16", table_index=1) as second:
        yield [first, second]


@pytest.fixture(scope="module")
def connectors(tables: list[Table]) -> Iterator[tuple[Connector, Connector]]:
    """One that is tried, and one that foreign tickets come from."""
    with (
        Connector(tables, max_tokens=16, num_slots=NUM_SLOTS, settings=PATIENT) as first,
        Connector(tables, max_tokens=16, num_slots=8, settings=PATIENT) as other,
    ):
        yield first, other


@dataclasses.dataclass
class Open:
    """A ticket as the model knows it."""

    ticket: Ticket
    batch: Batch
    lane: str
    awaited: set[int] = dataclasses.field(default_factory=set)


class Run:
    """A connector and what it should be, taken through the same calls."""

    def __init__(self, tables: list[Table], connector: Connector, foreign: Ticket) -> None:
        self.tables, self.connector, self.foreign = tables, connector, foreign
        self.tickets: list[Open] = []
        self.open: list[Open] = []
        self.before_lanes = connector.stats()["lanes"]
        self.taken = {"host": 0, "stream": 0}

    # What a call may not change where it raises.

    def state(self) -> tuple[Any, ...]:
        region, stats = self.connector._region, self.connector.stats()
        slots = (*region.ring.host_slots, *region.ring.stream_slots)
        return (
            stats["lanes"],
            stats["open_tickets"],
            region.announced(),
            [(region.slot_number(slot), region.released(slot)) for slot in slots[NUM_SLOTS:]],
            [region.released(slot) for slot in slots],
            [(each.ticket.awaited, each.ticket.is_released) for each in self.tickets],
        )

    def refused(self, call: Any, *, error: type[GramaryError] = GramaryError) -> None:
        before = self.state()
        with pytest.raises(error):
            call()
        assert self.state() == before

    def has_room(self, lane: str) -> bool:
        held = [each for each in self.open if each.lane == lane]
        if lane == "stream":
            return not held
        number = self.connector._region.announced() + 1
        return all(each.ticket.number != number - NUM_SLOTS for each in held)

    def request(self, lane: str, seed: int) -> None:
        batch = make_batch(seed, prefill=lane == "host")
        if not self.has_room(lane):
            self.refused(lambda: self.connector.request(batch), error=SlotsBusyError)
            return
        made = Open(self.connector.request(batch), batch, lane)
        self.tickets.append(made)
        self.open.append(made)
        self.taken[lane] += 1

    def request_wrongly(self, how: str, lane: str) -> None:
        batch = make_batch(1, prefill=lane == "host")
        if how == "token":
            batch.token_ids[3] = 10**6
        elif how == "type":
            batch = None  # type: ignore[assignment]
        elif how == "length":
            batch = make_batch(1, lengths=(17,), prefill=lane == "host")
        elif how == "width":
            batch = make_batch(1, width=3, prefill=lane == "host")
        else:
            batch.query_start_loc[1] = 7
        self.refused(lambda: self.connector.request(batch))

    def wait(self, index: int, table_index: int, how: str) -> None:
        if not self.tickets:
            return
        entry = self.tickets[index % len(self.tickets)]
        words: dict[str, Any] = {"table_index": table_index}
        if how == "out":
            words["out"] = torch.empty(3, 5)
        elif how == "dtype":
            words["dtype"] = torch.int32
        ticket = self.foreign if how == "foreign" else entry.ticket
        is_good = how == "good" and entry in self.open and table_index in range(NUM_TABLES)
        if not is_good or table_index in entry.awaited:
            self.refused(lambda: self.connector.wait(ticket, **words))
            return
        rows = self.connector.wait(ticket, **words)
        assert torch.equal(rows, expected_rows(self.tables[table_index], entry.batch))
        entry.awaited.add(table_index)
        if len(entry.awaited) == NUM_TABLES:
            self.open.remove(entry)

    def cancel(self, index: int, is_foreign: bool) -> None:
        if is_foreign:
            self.refused(lambda: self.connector.cancel(self.foreign))
        elif self.tickets:
            entry = self.tickets[index % len(self.tickets)]
            self.connector.cancel(entry.ticket)
            if entry in self.open:
                self.open.remove(entry)

    def release_outputs(self) -> None:
        self.connector.release_outputs()
        self.open = [entry for entry in self.open if not entry.awaited]

    def compare(self) -> None:
        stats = self.connector.stats()
        assert stats["open_tickets"] == len(self.open)
        now = dict.fromkeys(self.taken, 0)
        for name, number in stats["lanes"].items():
            now[name.partition(":")[0]] += number - self.before_lanes.get(name, 0)
        assert now == self.taken
        for entry in self.tickets:
            assert entry.ticket.is_released == (entry not in self.open)
            assert entry.ticket.awaited == entry.awaited


LANES = st.sampled_from(["host", "stream"])
CALLS = st.one_of(
    st.tuples(st.just("request"), LANES, st.integers(0, 5)),
    st.tuples(
        st.just("request_wrongly"),
        st.sampled_from(["token", "type", "length", "width", "bounds"]),
        # On the stream lane of CUDA tables tokens are looked at later; on the CPU at once.
        LANES,
    ),
    st.tuples(
        st.just("wait"),
        st.integers(0, 9),
        st.integers(-1, NUM_TABLES),
        st.sampled_from(["good", "good", "good", "out", "dtype", "foreign"]),
    ),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("release_outputs")),
)


@settings(max_examples=60)
@given(calls=st.lists(CALLS, max_size=25))
def test_kind_26_a_connector_is_its_model_and_refusals_change_nothing(
    tables: list[Table], connectors: tuple[Connector, Connector], calls: list[tuple[Any, ...]]
) -> None:
    connector, other = connectors
    foreign = other.request(make_batch(1))
    run = Run(tables, connector, foreign)
    for name, *words in calls:
        getattr(run, name)(*words)
        run.compare()
    for entry in list(run.open):
        connector.cancel(entry.ticket)
    other.cancel(foreign)
    assert connector.stats()["open_tickets"] == 0
