"""Kind 15 on the CUDA side, its kernels interpreted: what a broken call left on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
from abilities import ask_for
from interrupts import interrupt_everywhere
from offload_stage import expected_rows, make_batch, make_table

from gramary import Connector, Settings, Table
from gramary.errors import ArgumentError, SlotsBusyError
from gramary.offload import Ticket

PATIENT = Settings(request_timeout_s=20, num_threads=1)
NUM_SLOTS = 2
Lane = Literal["host", "stream"]
Make = Callable[..., Connector]
# Where work is queued, and noted as queued; the interpreter of the kernels is no part of it.
WITHIN = (
    "offload/connector",
    "offload/lanes",
    "giving_up/canceling",
    "cuda/device",
    "cuda/host_lane",
    "cuda/stream_lane",
    "cuda/take",
    "cuda/request",
    "contextlib",
)


@pytest.fixture(scope="module")
def tables() -> Iterator[list[Table]]:
    ask_for("triton")
    with make_table("bf16") as first, make_table("bf16", table_index=1) as second:
        yield [first, second]


@pytest.fixture
def connector(cuda_connector: Make, tables: list[Table]) -> Iterator[Connector]:
    with cuda_connector(tables, max_tokens=8, num_slots=NUM_SLOTS, settings=PATIENT) as opened:
        yield opened


@pytest.fixture(params=["host", "stream"])
def lane(request: pytest.FixtureRequest) -> Lane:
    return request.param


class Scene:
    def __init__(self, tables: list[Table], connector: Connector, lane: Lane) -> None:
        self.tables, self.connector = tables, connector
        self.batch = make_batch(1, lengths=(2,), prefill=lane == "host")
        self.num_slots = NUM_SLOTS if lane == "host" else 1
        self.expected = [expected_rows(table, self.batch) for table in tables]
        # Interpreted kernels are slow, and a request of the stream lane runs two.
        self.every = 13 if lane == "host" else 37
        self.tickets: list[Ticket] = []

    def take(self, ticket: Ticket) -> None:
        for table_index in sorted(set(range(2)) - ticket.awaited):
            assert torch.equal(
                self.connector.wait(ticket, table_index=table_index), self.expected[table_index]
            )

    def is_as_new(self) -> None:
        fresh = [self.connector.request(self.batch) for _ in range(self.num_slots)]
        for ticket in reversed(fresh):
            self.take(ticket)
        stats = self.connector.stats()
        assert (stats["open_tickets"], stats["failures"]) == (0, 0)
        self.connector.check()


def test_kind_15_a_request(connector: Connector, tables: list[Table], lane: Lane) -> None:
    scene = Scene(tables, connector, lane)

    def check() -> None:
        while scene.tickets:
            scene.take(scene.tickets.pop())
        scene.is_as_new()

    interrupt_everywhere(
        lambda: scene.tickets.append(connector.request(scene.batch)),
        check,
        within=WITHIN,
        every=scene.every,
    )


@pytest.mark.parametrize("is_last", [False, True])
def test_kind_15_a_wait(
    connector: Connector, tables: list[Table], lane: Lane, is_last: bool
) -> None:
    scene = Scene(tables, connector, lane)

    def before() -> None:
        scene.tickets[:] = [connector.request(scene.batch)]
        if is_last:
            connector.wait(scene.tickets[0], table_index=0)

    def check() -> None:
        ticket = scene.tickets.pop()
        if not ticket.is_released:
            scene.take(ticket)
        connector.cancel(ticket)
        scene.is_as_new()

    interrupt_everywhere(
        lambda: connector.wait(scene.tickets[0], table_index=1),
        check,
        before=before,
        within=WITHIN,
        every=scene.every,
    )


@pytest.mark.parametrize("num_awaited", [0, 1])
def test_kind_15_a_cancel(
    connector: Connector, tables: list[Table], lane: Lane, num_awaited: int
) -> None:
    scene = Scene(tables, connector, lane)

    def before() -> None:
        scene.tickets[:] = [connector.request(scene.batch)]
        for table_index in range(num_awaited):
            connector.wait(scene.tickets[0], table_index=table_index)

    def check() -> None:
        connector.cancel(scene.tickets.pop())
        scene.is_as_new()

    interrupt_everywhere(
        lambda: connector.cancel(scene.tickets[0]),
        check,
        before=before,
        within=WITHIN,
        every=scene.every,
    )


def test_kind_15_a_ticket_that_its_owner_lost(
    connector: Connector, tables: list[Table], lane: Lane
) -> None:
    scene = Scene(tables, connector, lane)
    for _ in range(2 * NUM_SLOTS + 1):
        connector.request(scene.batch)
        ticket = connector.request(scene.batch)
        connector.wait(ticket, table_index=1)
        del ticket
    scene.is_as_new()


def test_kind_15_tickets_that_a_capture_lost(
    connector: Connector, tables: list[Table], streams: object
) -> None:
    """A capture that broke off holds nothing; one that is under way cannot wait for the device."""
    scene = Scene(tables, connector, "stream")
    streams.capturing = True  # type: ignore[attr-defined]
    connector.request(scene.batch)
    streams.capturing = False  # type: ignore[attr-defined]
    scene.is_as_new()
    connector.request(scene.batch)
    streams.capturing = True  # type: ignore[attr-defined]
    with pytest.raises(SlotsBusyError, match="request once outside of a CUDA graph"):
        connector.request(scene.batch)
    # The remedy.
    streams.capturing = False  # type: ignore[attr-defined]
    connector.cancel(connector.request(scene.batch))
    scene.is_as_new()


def test_kind_15_a_call_that_broke_off_is_not_gone_on_with_inside_a_capture(
    connector: Connector, tables: list[Table], streams: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tables, connector, "stream")
    ticket = connector.request(scene.batch)

    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("gramary.offload.cuda.device_lane.take_rows", broken)
        with pytest.raises(KeyboardInterrupt):
            connector.wait(ticket, table_index=0)
    streams.capturing = True  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="one CUDA graph"):
        connector.wait(ticket, table_index=0)
    with pytest.raises(SlotsBusyError, match="end the capture of the CUDA graph"):
        connector.cancel(ticket)
    streams.capturing = False  # type: ignore[attr-defined]
    scene.take(ticket)
    scene.is_as_new()
