"""Every lane keeps one contract: request, take, then release or give up, as often as need be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from interrupts import interrupt_everywhere
from offload_stage import expected_rows, make_batch, make_table

from gramary import Batch, Connector, Settings, Table
from gramary.offload import Ticket
from gramary.offload.routing import Router

PATIENT = Settings(request_timeout_s=20, num_threads=1)
LANES = ("host", "stream", "direct")


@pytest.fixture(scope="module")
def tables() -> Iterator[list[Table]]:
    with make_table("fp8") as first, make_table("bf16", table_index=1) as second:
        yield [first, second]


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connector(
    tables: list[Table], lane: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connector]:
    if lane == "direct":
        # As of a GPU with all rows in its own memory.
        router = Router(early=True, rows_per_token=8, why_direct="told so")
        monkeypatch.setattr(Router, "of", lambda *_: router)
    with Connector(tables, max_tokens=16, num_slots=1, settings=PATIENT) as opened:
        yield opened


def batch_of(lane: str, seed: int) -> Batch:
    return make_batch(seed, prefill=lane != "stream")


def require_rows(connector: Connector, tables: list[Table], ticket: Ticket, batch: Batch) -> None:
    for table_index in sorted(set(range(len(tables))) - ticket.awaited):
        rows = connector.wait(ticket, table_index=table_index)
        assert torch.equal(rows, expected_rows(tables[table_index], batch))
    assert ticket.is_released


def test_a_ticket_names_its_lane(connector: Connector, tables: list[Table], lane: str) -> None:
    batch = batch_of(lane, 1)
    ticket = connector.request(batch)
    assert ticket.lane == lane
    assert f"the {lane} lane (3 request(s), 8 token(s))" in str(ticket)
    assert (ticket.slot is None) == (lane == "direct")
    require_rows(connector, tables, ticket, batch)
    (counted,) = connector.stats()["lanes"]
    assert counted.startswith(f"{lane}: ")


def test_what_is_given_up_leaves_nothing_behind(
    connector: Connector, tables: list[Table], lane: str
) -> None:
    for seed in range(10):
        ticket = connector.request(batch_of(lane, seed))
        if seed % 2:
            connector.wait(ticket, table_index=seed % 4 // 2)
            connector.release_outputs()
        else:
            connector.cancel(ticket)
        assert ticket.is_released
    assert connector.stats()["open_tickets"] == 0
    batch = batch_of(lane, 99)
    require_rows(connector, tables, connector.request(batch), batch)


def test_tensors_that_are_refilled_meanwhile_change_no_rows(
    connector: Connector, tables: list[Table], lane: str
) -> None:
    """Host tensors are copied by `request`, in whichever width and order they lie."""
    batch = batch_of(lane, 3)
    assert batch.history is not None
    tokens = torch.stack([batch.token_ids.to(torch.int32)] * 2, dim=1)
    narrow = Batch(
        tokens[:, 0],
        batch.query_start_loc,
        history=batch.history.to(torch.int32).t().contiguous().t(),
        is_prefill=lane != "stream",
    )
    expected = [expected_rows(table, batch) for table in tables]
    ticket = connector.request(narrow)
    tokens.fill_(96)
    assert narrow.history is not None
    narrow.history.fill_(96)
    for table_index in (1, 0):
        assert torch.equal(connector.wait(ticket, table_index=table_index), expected[table_index])


@pytest.mark.parametrize("is_last", [False, True])
def test_kind_15_a_wait_in_the_direct_lane(
    tables: list[Table], monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    """As in the lanes with slots: a wait that was interrupted can be made again."""
    router = Router(early=True, rows_per_token=8, why_direct="told so")
    monkeypatch.setattr(Router, "of", lambda *_: router)
    batch = batch_of("direct", 5)
    tickets: list[Ticket] = []
    with Connector(tables, max_tokens=16, settings=PATIENT) as connector:

        def before() -> None:
            tickets[:] = [connector.request(batch)]
            if is_last:
                connector.wait(tickets[0], table_index=0)

        def check() -> None:
            ticket = tickets.pop()
            if not ticket.is_released:
                require_rows(connector, tables, ticket, batch)
            connector.cancel(ticket)
            assert connector.stats()["open_tickets"] == 0

        interrupt_everywhere(
            lambda: connector.wait(tickets[0], table_index=1),
            check,
            before=before,
            within=("gramary/offload/",),
        )
