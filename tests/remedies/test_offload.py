"""Kind 16: what the errors of a connector advise, followed."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from abilities import ask_for
from cuda_side_stage import CallingThread, use_cuda_side
from offload_stage import expected_rows, make_batch, make_table, wait_until

from gramary import Connector, Settings, Table
from gramary.errors import (
    ArgumentError,
    CapacityError,
    ClosedError,
    FetchTimeoutError,
    RowFetchError,
    SlotsBusyError,
)
from gramary.offload import RowServer, Ticket, setup
from gramary.offload.memory.region import Region

PATIENT = Settings(request_timeout_s=20, num_threads=1)
Lane = Literal["host", "stream"]


@pytest.fixture(scope="module")
def tables() -> Iterator[list[Table]]:
    with make_table() as first, make_table("bf16", table_index=1) as second:
        yield [first, second]


@pytest.fixture
def connector(tables: list[Table]) -> Iterator[Connector]:
    with Connector(tables, max_tokens=16, settings=PATIENT) as opened:
        yield opened


@pytest.fixture(params=["host", "stream"])
def lane(request: pytest.FixtureRequest) -> Lane:
    return request.param


def fill(connector: Connector, lane: Lane) -> list[Ticket]:
    """Takes every slot of a lane."""
    prefill = lane == "host"
    return [connector.request(make_batch(i, prefill=prefill)) for i in range(2 if prefill else 1)]


def is_served(connector: Connector, tables: list[Table], lane: Lane) -> None:
    batch = make_batch(7, prefill=lane == "host")
    ticket = connector.request(batch)
    for table_index, table in enumerate(tables):
        assert torch.equal(
            connector.wait(ticket, table_index=table_index), expected_rows(table, batch)
        )


def wait_for(connector: Connector, ticket: Ticket) -> None:
    for table_index in {0, 1} - ticket.awaited:
        connector.wait(ticket, table_index=table_index)


FREEING: dict[str, Callable[[Connector, Ticket], object]] = {
    "wait": wait_for,
    "cancel": lambda connector, ticket: connector.cancel(ticket),
    "release_outputs": lambda connector, _: connector.release_outputs(),
}


@pytest.mark.remedy("wait for it or cancel it")
@pytest.mark.parametrize("remedy", ["wait", "cancel"])
def test_kind_16_slots_in_use(connector: Connector, lane: Lane, remedy: str) -> None:
    """The ticket that the message names is the one that stands in the way."""
    tickets = fill(connector, lane)
    batch = make_batch(9, prefill=lane == "host")
    for _ in range(3):
        with pytest.raises(SlotsBusyError, match="wait for it or cancel it") as caught:
            connector.request(batch)
        assert str(tickets[0]) in str(caught.value)
        if lane == "host":
            assert "all 2 host-lane slots are in use (oldest: ticket" in str(caught.value)
        # What the message used to advise frees nothing here, and is advised no more.
        connector.release_outputs()
        assert "release_outputs" not in str(caught.value)
        FREEING[remedy](connector, tickets.pop(0))
        tickets.append(connector.request(batch))


@pytest.mark.remedy("wait for its other layers, call release_outputs(), or cancel it")
@pytest.mark.parametrize("remedy", FREEING)
def test_kind_16_slots_in_use_by_tickets_awaited_for_some_layers(
    connector: Connector, tables: list[Table], lane: Lane, remedy: str
) -> None:
    tickets = fill(connector, lane)
    connector.wait(tickets[0], table_index=1)
    with pytest.raises(SlotsBusyError, match="wait for its other layers, call release_outputs"):
        connector.request(make_batch(9, prefill=lane == "host"))
    FREEING[remedy](connector, tickets[0])
    assert tickets[0].is_released
    is_served(connector, tables, lane)


@pytest.mark.remedy("and the next in turn is that of")
@pytest.mark.parametrize("remedy", ["wait", "cancel"])
def test_kind_16_a_slot_that_is_free_but_not_next(
    connector: Connector, tables: list[Table], remedy: str
) -> None:
    """Any ticket may be awaited first; the message names the one whose slot comes next."""
    first, second = fill(connector, "host")
    wait_for(connector, second)
    with pytest.raises(SlotsBusyError, match="1 of 2 host-lane slots are in use") as caught:
        connector.request(make_batch(9))
    assert str(first) in str(caught.value)
    FREEING[remedy](connector, first)
    is_served(connector, tables, "host")


@pytest.mark.remedy("or raise num_slots")
def test_kind_16_more_slots(tables: list[Table]) -> None:
    with Connector(tables, max_tokens=16, num_slots=3, settings=PATIENT) as connector:
        tickets = fill(connector, "host")
        is_served(connector, tables, "host")
        assert not any(ticket.is_released for ticket in tickets)


def test_kind_16_a_busy_slot_is_never_held_by_a_ticket_that_nobody_has(
    connector: Connector, tables: list[Table], lane: Lane
) -> None:
    """Who lost the ticket could follow no advice about it."""
    for _ in range(5):
        fill(connector, lane)
    is_served(connector, tables, lane)


@pytest.mark.remedy("request again once it has, or close this connector and make a new one")
@pytest.mark.parametrize("remedy", ["request again", "make a new one"])
def test_kind_16_a_slot_that_is_quarantined(tables: list[Table], lane: Lane, remedy: str) -> None:
    quick = dataclasses.replace(PATIENT, request_timeout_s=0.1)
    connector = Connector(tables, max_tokens=16, num_slots=1, settings=quick)
    connector.service.native.hold(True)
    batch = make_batch(1, prefill=lane == "host")
    ticket = connector.request(batch)
    for table_index in (0, 1):
        with pytest.raises(FetchTimeoutError, match="restart them"):
            connector.wait(ticket, table_index=table_index)
    with pytest.raises(FetchTimeoutError, match="request again once it has"):
        connector.request(batch)
    if remedy == "request again":
        connector.service.native.hold(False)
        wait_until(lambda: connector.stats()["late_answers"] == 1)
        slot = ticket.slot
        assert slot is not None
        wait_until(lambda: not connector._quarantine.is_locked(slot))
    else:
        connector.close()
        connector = Connector(tables, max_tokens=16, num_slots=1, settings=PATIENT)
    is_served(connector, tables, lane)
    connector.close()


@pytest.mark.remedy("close this connector and make a new one", "restart them")
def test_kind_16_a_worker_that_died(tables: list[Table]) -> None:
    connector = Connector(tables, max_tokens=16, worker="process", settings=PATIENT)
    ticket = connector.request(make_batch(0))
    os.kill(connector.service.process.pid, signal.SIGKILL)
    connector.service.process.wait()
    with pytest.raises(RowFetchError, match="close this connector and make a new one"):
        connector.request(make_batch(1))
    connector.close()
    assert not ticket.is_released
    # Its requests are restarted: asked for again, from their beginning.
    with Connector(tables, max_tokens=16, settings=PATIENT) as again:
        is_served(again, tables, "host")


@pytest.mark.remedy("open the table and make the connector here")
def test_kind_16_a_forked_child_makes_its_own(connector: Connector) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(ClosedError, match="open the table and make the connector here"):
                connector.request(make_batch(1))
            with make_table() as own, Connector(own, max_tokens=16, settings=PATIENT) as made:
                is_served(made, [own], "host")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.remedy("give max_tokens or num_slots a smaller number")
def test_kind_16_slots_that_the_machine_has_no_memory_for(
    tables: list[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = setup.Region

    def refuse(shape: Any, registry: object) -> object:
        if shape.max_tokens > 16:
            raise OSError(12, "Cannot allocate memory")
        return made(shape, registry)

    monkeypatch.setattr(setup, "Region", refuse)
    with pytest.raises(CapacityError, match="or num_slots a smaller number"):
        Connector(tables, max_tokens=17)
    with Connector(tables, max_tokens=16, settings=PATIENT) as connector:
        is_served(connector, tables, "host")


@pytest.mark.remedy("expected worker='process' beside it")
def test_kind_16_a_server_without_a_worker_process(tables: list[Table]) -> None:
    with RowServer(1, settings=PATIENT) as server:
        with pytest.raises(ArgumentError, match="expected worker='process' beside it"):
            Connector(tables, max_tokens=16, server=server.address)
        with Connector(
            tables, max_tokens=16, worker="process", server=server.address, settings=PATIENT
        ) as connector:
            is_served(connector, tables, "stream")


def test_kind_16_tickets_are_told_apart_in_messages(connector: Connector) -> None:
    first, second = fill(connector, "host")
    assert str(first) != str(second)
    assert re.match(r"ticket \d+ of the host lane \(3 request\(s\), 8 token\(s\)\)", str(first))


# On the CUDA side, its kernels interpreted.


@pytest.fixture
def on_device(
    monkeypatch: pytest.MonkeyPatch, tables: list[Table]
) -> Iterator[tuple[Connector, CallingThread]]:
    ask_for("triton")
    streams = CallingThread()
    use_cuda_side(monkeypatch, streams)
    with Connector(tables, max_tokens=8, settings=PATIENT) as connector:
        yield connector, streams


SMALL: dict[str, Any] = {"lengths": (2,), "prefill": False}


@pytest.mark.remedy("request once outside of a CUDA graph", "or both outside of any")
def test_kind_16_a_ticket_of_another_graph(on_device: tuple[Connector, CallingThread]) -> None:
    connector, streams = on_device
    ticket = connector.request(make_batch(1, **SMALL))
    streams.capturing = True
    with pytest.raises(ArgumentError, match="or both outside of any"):
        connector.wait(ticket)
    del ticket
    with pytest.raises(SlotsBusyError, match="request once outside of a CUDA graph"):
        connector.request(make_batch(2, **SMALL))
    streams.capturing = False
    connector.cancel(connector.request(make_batch(2, **SMALL)))
    streams.capturing = True
    ticket = connector.request(make_batch(2, **SMALL))
    for table_index in (0, 1):
        connector.wait(ticket, table_index=table_index)
    streams.capturing = False


@pytest.mark.remedy("request on one of them")
def test_kind_16_more_streams_than_slots(
    on_device: tuple[Connector, CallingThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    connector, streams = on_device
    device: Any = connector._device
    monkeypatch.setattr(device.slots, "stream", device.slots.stream[:1])
    connector.cancel(connector.request(make_batch(1, **SMALL)))
    streams.stream = 1
    with pytest.raises(SlotsBusyError, match="request on one of them"):
        connector.request(make_batch(2, **SMALL))
    streams.stream = 0
    connector.cancel(connector.request(make_batch(2, **SMALL)))


@pytest.mark.remedy("wait for the device (torch.cuda.synchronize()) and request again")
def test_kind_16_a_device_that_is_far_behind(
    on_device: tuple[Connector, CallingThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the device is the calling thread: that its releases come late is played."""
    connector, _ = on_device
    batch = make_batch(1, lengths=(2,))
    with monkeypatch.context() as patched:
        for _ in range(len(connector._region.ring.inputs)):
            connector.cancel(connector.request(batch))
        patched.setattr(Region, "released", lambda _self, _slot: 0)
        with pytest.raises(SlotsBusyError, match=r"wait for the device \(torch.cuda.synchronize"):
            connector.request(batch)
    connector.cancel(connector.request(batch))
