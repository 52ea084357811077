"""Kind 15: calls of a connector that are interrupted, at any place, lose no slot and no rows."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from interrupts import held_by_process, interrupt_everywhere, require_held
from offload_stage import expected_rows, make_batch, make_table, wait_until

from gramary import Connector, Settings, Table
from gramary.errors import ArgumentError, ClosedError
from gramary.offload import RowServer, Ticket

PATIENT = Settings(request_timeout_s=20, num_threads=1)
NUM_SLOTS = 2
Lane = Literal["host", "stream"]
# Where slots are taken and given back; what checks and hashes a batch holds nothing.
OFFLOAD = ("gramary/offload/", "contextlib")


@pytest.fixture(scope="module")
def tables() -> Iterator[list[Table]]:
    with make_table("fp8") as first, make_table("bf16", table_index=1) as second:
        yield [first, second]


class Scene:
    """A connector over two tables, with batches whose rows are known."""

    def __init__(self, tables: list[Table], connector: Connector) -> None:
        self.connector = connector
        self.num_tables = len(tables)
        self.batches = [make_batch(seed) for seed in range(NUM_SLOTS)]
        self.batches.append(make_batch(9, prefill=False))
        self.expected = [
            [expected_rows(table, batch) for table in tables] for batch in self.batches
        ]
        self.num_taken = 0
        # A worker process changes nothing in the calls themselves: a part of the places will do.
        self.every = 4 if type(connector.service).__name__ == "ProcessService" else 1
        self.tickets: list[Ticket] = []

    def index(self, lane: Lane) -> int:
        return 0 if lane == "host" else NUM_SLOTS

    def request(self, lane: Lane) -> Ticket:
        ticket = self.connector.request(self.batches[self.index(lane)])
        self.num_taken += 1
        return ticket

    def rows_are_right(self, ticket: Ticket, index: int) -> None:
        """Takes every table that is left."""
        for table_index in set(range(self.num_tables)) - ticket.awaited:
            assert torch.equal(
                self.connector.wait(ticket, table_index=table_index),
                self.expected[index][table_index],
            )

    def is_as_new(self) -> None:
        """Fails unless every slot can be had at once, with the right rows, and nothing is open."""
        fresh = [self.connector.request(batch) for batch in self.batches]
        self.num_taken += len(fresh)
        stats = self.connector.stats()
        assert stats["open_tickets"] == len(fresh)
        for index, ticket in reversed(list(enumerate(fresh))):
            self.rows_are_right(ticket, index)
        stats = self.connector.stats()
        assert (stats["open_tickets"], stats["failures"]) == (0, 0)
        assert sum(stats["lanes"].values()) == self.num_taken


@pytest.fixture(scope="module", params=["thread", "process"])
def scene(request: pytest.FixtureRequest, tables: list[Table]) -> Iterator[Scene]:
    with Connector(
        tables, max_tokens=16, num_slots=NUM_SLOTS, worker=request.param, settings=PATIENT
    ) as connector:
        yield Scene(tables, connector)


@pytest.fixture(params=["host", "stream"])
def lane(request: pytest.FixtureRequest) -> Lane:
    return request.param


def test_kind_15_a_request(scene: Scene, lane: Lane) -> None:
    """Either the caller has a ticket, or there is none, and no slot is held."""
    tickets: list[Ticket] = []

    def check() -> None:
        while tickets:
            scene.num_taken += 1
            scene.rows_are_right(tickets.pop(), scene.index(lane))
        scene.is_as_new()

    assert interrupt_everywhere(
        lambda: tickets.append(scene.connector.request(scene.batches[scene.index(lane)])),
        check,
        within=OFFLOAD,
        every=scene.every,
    )


def test_kind_15_a_request_whose_exception_is_kept(scene: Scene, lane: Lane) -> None:
    """A notebook keeps the last traceback, with all that its frames hold."""
    batch = scene.batches[scene.index(lane)]
    tickets: list[Ticket] = []

    def call() -> None:
        tickets.append(scene.connector.request(batch))
        scene.num_taken += 1
        scene.connector.cancel(tickets[0])

    def check() -> None:
        while tickets:
            scene.connector.cancel(tickets.pop())
        scene.is_as_new()

    within = ("offload/connector", "offload/lanes")
    interrupt_everywhere(call, check, within=within, every=scene.every, is_handled=False)


@pytest.mark.parametrize("is_last", [False, True])
def test_kind_15_a_wait(scene: Scene, lane: Lane, is_last: bool) -> None:
    """The ticket can be awaited again, also for the table that was interrupted, or is done with."""
    table_index = 1

    def before() -> None:
        ticket = scene.request(lane)
        scene.tickets[:] = [ticket]
        if is_last:
            scene.connector.wait(ticket, table_index=0)

    def check() -> None:
        ticket = scene.tickets.pop()
        assert ticket.is_released or table_index not in ticket.awaited or not is_last
        if not ticket.is_released:
            scene.rows_are_right(ticket, scene.index(lane))
        with pytest.raises(ArgumentError, match="under way"):
            scene.connector.wait(ticket, table_index=table_index)
        scene.connector.cancel(ticket)
        scene.is_as_new()

    interrupt_everywhere(
        lambda: scene.connector.wait(scene.tickets[0], table_index=table_index),
        check,
        before=before,
        within=OFFLOAD,
        every=scene.every,
    )


@pytest.mark.parametrize("num_awaited", [0, 1])
def test_kind_15_a_cancel(scene: Scene, lane: Lane, num_awaited: int) -> None:
    def before() -> None:
        scene.tickets[:] = [scene.request(lane)]
        for table_index in range(num_awaited):
            scene.connector.wait(scene.tickets[0], table_index=table_index)

    def check() -> None:
        ticket = scene.tickets.pop()
        scene.connector.cancel(ticket)
        assert ticket.is_released
        scene.is_as_new()

    interrupt_everywhere(
        lambda: scene.connector.cancel(scene.tickets[0]), check, before=before, every=scene.every
    )


def test_kind_15_release_outputs(scene: Scene, lane: Lane) -> None:
    def before() -> None:
        scene.tickets[:] = [scene.request(lane)]
        scene.connector.wait(scene.tickets[0], table_index=1)

    def check() -> None:
        scene.connector.release_outputs()
        assert scene.tickets.pop().is_released
        scene.is_as_new()

    interrupt_everywhere(scene.connector.release_outputs, check, before=before, every=scene.every)


OTHERS: dict[str, Callable[[Connector], object]] = {
    "check": lambda connector: connector.check(),
    "stats": lambda connector: connector.stats(),
    "trace": lambda connector: connector.trace(True),
    "take_spans": lambda connector: connector.take_spans(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_kind_15_any_other_call_with_tickets_open(scene: Scene, lane: Lane, name: str) -> None:
    def before() -> None:
        scene.tickets[:] = [scene.request(lane)]

    def check() -> None:
        scene.rows_are_right(scene.tickets.pop(), scene.index(lane))
        scene.is_as_new()

    interrupt_everywhere(lambda: OTHERS[name](scene.connector), check, before=before, every=4)
    scene.connector.trace(False)


def test_kind_15_a_ticket_that_its_owner_lost_is_given_back(scene: Scene, lane: Lane) -> None:
    """An engine's forward raises between request and wait: nobody can cancel its ticket."""
    for _ in range(2 * NUM_SLOTS + 1):
        for _ in range(NUM_SLOTS if lane == "host" else 1):
            scene.request(lane)
        assert scene.connector.stats()["open_tickets"] == 0
        ticket = scene.request(lane)
        scene.connector.wait(ticket, table_index=0)
        del ticket
    scene.is_as_new()


def test_kind_15_an_interrupt_while_the_rows_do_not_come(tables: list[Table], lane: Lane) -> None:
    """What is given up while the service hangs on it is locked, and free once it is through."""
    quick = Settings(request_timeout_s=0.05, num_threads=1)
    with Connector(tables, max_tokens=16, num_slots=NUM_SLOTS, settings=quick) as connector:
        scene = Scene(tables, connector)
        tickets: list[Ticket] = []

        def before() -> None:
            connector.service.native.hold(True)
            tickets[:] = [connector.request(scene.batches[scene.index(lane)])]
            scene.num_taken += 1

        def call() -> None:
            with pytest.raises(Exception, match="restart them"):
                connector.wait(tickets[0], table_index=0)

        def check() -> None:
            ticket = tickets.pop()
            if not ticket.awaited:
                with pytest.raises(Exception, match="restart them"):
                    connector.wait(ticket, table_index=0)
            connector.cancel(ticket)
            connector.service.native.hold(False)
            region = connector._region
            wait_until(lambda: not any(map(scene_quarantine(connector), region_slots(region))))
            patient(scene)

        interrupt_everywhere(call, check, before=before, within=("offload/lanes",), every=2)


def scene_quarantine(connector: Connector) -> Callable[[Any], bool]:
    return connector._quarantine.is_locked


def region_slots(region: Any) -> tuple[Any, ...]:
    return (*region.ring.host_slots, *region.ring.stream_slots)


def patient(scene: Scene) -> None:
    """As `is_as_new`, where the time-out is too short to be sure of the rows."""
    for batch in scene.batches:
        scene.connector.cancel(scene.connector.request(batch))
        scene.num_taken += 1
    assert scene.connector.stats()["open_tickets"] == 0


@pytest.fixture(scope="module")
def server() -> Iterator[RowServer]:
    with RowServer(1, settings=PATIENT) as opened:
        yield opened


def make_connector(tables: list[Table], worker: str, server: RowServer) -> Connector:
    address = server.address if worker == "process" else None
    return Connector(
        tables,
        max_tokens=16,
        worker=worker,
        server=address,
        settings=PATIENT,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_kind_15_a_close(tables: list[Table], worker: str, server: RowServer) -> None:
    """The next close goes on with it, and nothing is left."""
    opened: list[Connector] = []
    make_connector(tables, worker, server).close()
    gc.collect()
    held = held_by_process()
    batch = make_batch(1)

    def before() -> None:
        opened[:] = [make_connector(tables, worker, server)]
        opened[0].request(batch)

    def check() -> None:
        connector = opened.pop()
        connector.close()
        with pytest.raises(ClosedError):
            connector.request(batch)
        # The core's threads take a moment to be gone from the process's list.
        wait_until(lambda: threads_now() <= held[1])
        require_held(held)

    interrupt_everywhere(lambda: opened[0].close(), check, before=before, every=5)


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_kind_15_a_connector_that_is_interrupted_in_its_making(
    tables: list[Table], worker: str, server: RowServer
) -> None:
    make_connector(tables, worker, server).close()
    gc.collect()
    held = held_by_process()

    def check() -> None:
        wait_until(lambda: threads_now() <= held[1])
        require_held(held)

    interrupt_everywhere(
        lambda: make_connector(tables, worker, server).close(),
        check,
        within=("offload/", "native/", "lifetime"),
        every=61,
    )


def threads_now() -> int:
    return held_by_process()[1]


def test_kind_15_a_close_from_another_thread_waits_for_the_call_inside(tables: list[Table]) -> None:
    connector = Connector(tables, max_tokens=16, settings=PATIENT)
    connector.service.native.hold(True)
    ticket = connector.request(make_batch(0))
    closer = threading.Thread(target=connector.close)
    with connector._lock:
        closer.start()
        assert closer.is_alive()
        assert not connector._is_closed
    closer.join(10)
    assert not closer.is_alive()
    with pytest.raises(ClosedError):
        connector.wait(ticket)
