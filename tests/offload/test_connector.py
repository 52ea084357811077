"""Connector on the CPU: rows, lanes, order, release, failures. Stories with small tables."""

from __future__ import annotations

import dataclasses
import errno
import gc
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
from offload_stage import expected_rows, make_batch, make_spec, make_table, wait_until
from torch._subclasses.fake_tensor import FakeTensorMode

from gramary import Connector, Settings, Table
from gramary.errors import (
    ArgumentError,
    CapacityError,
    ClosedError,
    FetchTimeoutError,
    LoadError,
    RowFetchError,
    SlotsBusyError,
    TokenError,
)
from gramary.model.codecs import Codec

Worker = Literal["thread", "process"]

TENSORS = ("token_ids", "query_start_loc", "history")

QUICK = Settings(request_timeout_s=0.2, num_threads=2)


@pytest.fixture
def table() -> Iterator[Table]:
    with make_table() as opened:
        yield opened


@pytest.fixture
def connector(table: Table) -> Iterator[Connector]:
    with Connector(table, max_tokens=16, settings=QUICK) as opened:
        yield opened


@pytest.mark.parametrize("codec", ["bf16", "fp16", "fp32", "fp8", "nvfp4"])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.uint8])
@pytest.mark.parametrize("prefill", [True, False])
def test_rows_equal_the_tables(codec: str, dtype: torch.dtype | None, prefill: bool) -> None:
    with make_table(codec) as table, Connector(table, max_tokens=16) as connector:
        for seed in range(4):
            batch = make_batch(seed, prefill=prefill)
            rows = connector.wait(connector.request(batch), dtype=dtype)
            assert torch.equal(rows, expected_rows(table, batch, dtype))


def test_lanes_taken_and_why(table: Table, connector: Connector) -> None:
    prompt, decode = make_batch(0), make_batch(1, prefill=False)
    drafts = dataclasses.replace(make_batch(2), num_drafts=[1, 0, 0])
    for batch in (prompt, decode, drafts):
        connector.wait(connector.request(batch))
    lanes = connector.stats()["lanes"]
    assert lanes == {"host: prompt-only": 1, "stream: decode": 1, "stream: drafts": 1}
    with Connector(table, max_tokens=16, prefill_early_request=False) as late:
        rows = late.wait(late.request(prompt))
        assert torch.equal(rows, expected_rows(table, prompt))
        assert late.stats()["lanes"] == {"stream: prefill_early_request is off": 1}


def test_early_requests_are_served_while_others_wait(table: Table, connector: Connector) -> None:
    batches = [make_batch(seed) for seed in range(2)]
    tickets = [connector.request(batch) for batch in batches]
    decode = make_batch(9, prefill=False)
    assert torch.equal(connector.wait(connector.request(decode)), expected_rows(table, decode))
    # Awaited in the other order than requested: each slot is its own.
    for ticket, batch in reversed(list(zip(tickets, batches, strict=True))):
        assert torch.equal(connector.wait(ticket), expected_rows(table, batch))


@pytest.mark.parametrize("prefill", [True, False])
def test_tensors_of_any_layout_are_read_as_their_numbers(
    table: Table, connector: Connector, prefill: bool
) -> None:
    """Steps, transposed histories, other integers, and views that are negated when read."""
    batch = make_batch(3, prefill=prefill)
    assert batch.history is not None
    changes: list[dict[str, torch.Tensor]] = [
        {"token_ids": batch.token_ids.repeat_interleave(2)[::2]},
        {"token_ids": batch.token_ids.int(), "history": batch.history.t().contiguous().t()},
        {"history": batch.history.int()},
        {name: torch._neg_view(-getattr(batch, name)) for name in TENSORS},
    ]
    for change in changes:
        changed = dataclasses.replace(batch, **change)
        assert torch.equal(connector.wait(connector.request(changed)), expected_rows(table, batch))
    with pytest.raises(ArgumentError, match="expected a plain tensor, got a FakeTensor"):
        dataclasses.replace(batch, token_ids=FakeTensorMode().from_tensor(batch.token_ids))
    ticket = connector.request(batch)
    out = torch.empty(batch.num_tokens, table.spec.embed_dim)
    for wrong, problem in [
        (FakeTensorMode().from_tensor(out), "plain tensor"),
        (torch._neg_view(out), "negated"),
        (out.t().contiguous().t(), "contiguous"),
        (out.double(), "dtype"),
        (out[1:], r"\[8, 128\]"),
    ]:
        with pytest.raises(ArgumentError, match=problem):
            connector.wait(ticket, out=wrong)
    assert torch.equal(connector.wait(ticket, out=out), expected_rows(table, batch, out.dtype))


def test_inputs_are_copied_before_request_returns(table: Table, connector: Connector) -> None:
    batch = make_batch(3)
    expected = expected_rows(table, batch)
    ticket = connector.request(batch)
    batch.token_ids.zero_()
    assert torch.equal(connector.wait(ticket), expected)


def test_padding_and_empty_batches(table: Table, connector: Connector) -> None:
    real = make_batch(4)
    padded = dataclasses.replace(
        real, token_ids=torch.cat([real.token_ids, torch.full((3,), 96)]), num_padding=3
    )
    rows = connector.wait(connector.request(padded))
    assert torch.equal(rows[:8], expected_rows(table, real))
    assert not rows[8:].any()
    empty = make_batch(0, lengths=())
    assert connector.wait(connector.request(empty)).shape == (0, table.spec.embed_dim)


def test_busy_slots_and_cancel(table: Table, connector: Connector) -> None:
    first, second = connector.request(make_batch(0)), connector.request(make_batch(1))
    with pytest.raises(SlotsBusyError, match="num_slots"):
        connector.request(make_batch(2))
    connector.cancel(first)
    third = connector.request(make_batch(2))
    for ticket, seed in ((second, 1), (third, 2)):
        assert torch.equal(connector.wait(ticket), expected_rows(table, make_batch(seed)))
    with pytest.raises(ArgumentError, match="under way"):
        connector.wait(first)
    decode = connector.request(make_batch(5, prefill=False))
    with pytest.raises(SlotsBusyError, match="stream lane"):
        connector.request(make_batch(6, prefill=False))
    connector.cancel(decode)
    again = make_batch(7, prefill=False)
    assert torch.equal(connector.wait(connector.request(again)), expected_rows(table, again))


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("prefill", [True, False])
def test_tensors_that_fit_no_more_are_named_at_the_request(
    connector: Connector, table: Table, name: str, prefill: bool
) -> None:
    """Between the making of a batch and its request its tensors were refilled, or shrunk."""
    batch = make_batch(1, prefill=prefill)
    tensor = getattr(batch, name)
    kept = tensor.clone()
    tensor.resize_(0, 2) if name == "history" else tensor.fill_(1000)
    with pytest.raises((ArgumentError, TokenError), match=f"^{name}"):
        connector.request(batch)
    tensor.resize_(kept.shape).copy_(kept)
    for _ in range(3):
        assert torch.equal(connector.wait(connector.request(batch)), expected_rows(table, batch))


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_forked_child_is_refused_and_takes_nothing_from_its_parent(worker: Worker) -> None:
    """The child shares the memory: what it asked for there would reach the parent's tickets."""
    with (
        make_table() as table,
        Connector(table, max_tokens=16, worker=worker, settings=QUICK) as connector,
    ):
        awaited = connector.request(make_batch(7))
        calls = [
            lambda: connector.request(make_batch(1)),
            lambda: connector.wait(awaited),
            lambda: connector.cancel(awaited),
            connector.release_outputs,
            connector.check,
            connector.stats,
        ]
        assert refused_in_a_fork(calls) == len(calls)
        assert torch.equal(connector.wait(awaited), expected_rows(table, make_batch(7)))
        for seed in range(4):
            batch = make_batch(seed, prefill=bool(seed % 2))
            rows = connector.wait(connector.request(batch))
            assert torch.equal(rows, expected_rows(table, batch))


def refused_in_a_fork(calls: list[Callable[[], object]]) -> int:
    """Returns how many of the calls raise ClosedError, naming the parent, in a forked child."""
    parent = os.getpid()
    # A fork of a process with threads warns from Python 3.12 on; it is what is tested.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    refused = 0
    for call in calls:
        try:
            call()
        except ClosedError as error:
            refused += f"process {parent}" in str(error)
        except BaseException:
            os._exit(255)
    os._exit(refused)


def test_many_canceled_tickets_leave_every_slot_free(table: Table, connector: Connector) -> None:
    for seed in range(50):
        connector.cancel(connector.request(make_batch(seed)))
    batch = make_batch(99)
    assert torch.equal(connector.wait(connector.request(batch)), expected_rows(table, batch))


@pytest.mark.parametrize("prefill", [True, False])
def test_batches_abandoned_under_a_slow_worker_reach_nobody(table: Table, prefill: bool) -> None:
    """The engine gives batches up that the service works on; the next ones get their own rows."""
    with Connector(table, max_tokens=16, num_slots=2, settings=QUICK) as connector:
        service = connector.service.native
        for seed in range(0, 30, 3):
            service.hold(True)
            tickets = [connector.request(make_batch(seed, prefill=prefill))]
            if prefill:
                tickets.append(connector.request(make_batch(seed + 1)))
            for ticket in reversed(tickets):
                connector.cancel(ticket)
            service.hold(False)
            batch = make_batch(seed + 2, prefill=prefill)
            rows = connector.wait(connector.request(batch))
            assert torch.equal(rows, expected_rows(table, batch))
        assert connector.stats()["open_tickets"] == 0


@pytest.mark.parametrize("num_slots", [1, 2, 3, 4])
def test_order_under_random_delays(table: Table, num_slots: int) -> None:
    with Connector(table, max_tokens=300, num_slots=num_slots, settings=QUICK) as connector:
        connector.service.native.set_script(max_delay_us=2000, seed=num_slots)
        lengths = tuple(i % 17 for i in range(32))
        pending = []
        for seed in range(24):
            batch = make_batch(seed, lengths=lengths)
            pending.append((connector.request(batch), batch))
            if len(pending) == num_slots:
                ticket, oldest = pending.pop(0)
                assert torch.equal(connector.wait(ticket), expected_rows(table, oldest))
            if seed % 3 == 0:
                decode = make_batch(seed, lengths=(1,) * 32, prefill=False)
                rows = connector.wait(connector.request(decode))
                assert torch.equal(rows, expected_rows(table, decode))
        for ticket, batch in pending:
            assert torch.equal(connector.wait(ticket), expected_rows(table, batch))


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("prefill", [True, False])
def test_a_failed_request_is_nan_and_later_ones_are_well(table: Table, prefill: bool) -> None:
    """Behaviour 32: an I/O error is that request's alone."""
    with Connector(table, max_tokens=16, settings=QUICK) as connector:
        connector.service.native.set_script(fail_every=2)
        for seed in range(6):
            batch = make_batch(seed, prefill=prefill)
            out = torch.zeros(8, table.spec.embed_dim, dtype=torch.float32)
            ticket = connector.request(batch)
            if seed % 2:
                with pytest.raises(RowFetchError, match="restart them") as caught:
                    connector.wait(ticket, out=out)
                assert caught.value.errno == 5
                assert out.isnan().all()
            else:
                rows = connector.wait(ticket, out=out)
                assert rows is out
                assert torch.equal(out, expected_rows(table, batch, torch.float32))


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("prefill", [True, False])
def test_an_answer_after_the_time_out_wakes_nobody(table: Table, prefill: bool) -> None:
    """Behaviour 32: a slow worker never hangs the engine, nor gives one request another's rows."""
    with Connector(table, max_tokens=16, settings=QUICK) as connector:
        service = connector.service.native
        service.hold(True)
        ticket = connector.request(make_batch(0, prefill=prefill))
        began = time.monotonic()
        out = torch.zeros(8, table.spec.embed_dim)
        with pytest.raises(RowFetchError, match="GRAMARY_REQUEST_TIMEOUT_S"):
            connector.wait(ticket, out=out)
        assert 0.15 < time.monotonic() - began < 2
        assert out.isnan().all()
        slots_left = 1 if prefill else 0
        for seed in range(slots_left):
            connector.cancel(connector.request(make_batch(seed, prefill=prefill)))
        with pytest.raises(FetchTimeoutError, match="quarantined"):
            connector.request(make_batch(1, prefill=prefill))
        service.hold(False)
        wait_until(lambda: connector.stats()["late_answers"] >= 1, seconds=5)
        assert connector.stats()["late_answers"] == 1
        for seed in range(2, 6):
            batch = make_batch(seed, prefill=prefill)
            assert torch.equal(
                connector.wait(connector.request(batch)), expected_rows(table, batch)
            )


def test_close_with_requests_in_flight(table: Table) -> None:
    connector = Connector(table, max_tokens=16, settings=QUICK)
    connector.service.native.hold(True)
    ticket = connector.request(make_batch(0))
    connector.request(make_batch(1, prefill=False))
    connector.close()
    connector.close()
    for call in (lambda: connector.wait(ticket), lambda: connector.request(make_batch(2))):
        with pytest.raises(ClosedError):
            call()


def test_several_layers_with_one_request() -> None:
    with (
        make_table("fp8") as first,
        make_table("nvfp4", table_index=1) as second,
        make_table("bf16", table_index=2, ngram_size=4) as third,
    ):
        tables = [first, second, third]
        with Connector(tables, max_tokens=16, settings=QUICK) as connector:
            for seed, prefill in ((0, True), (1, False), (2, True)):
                batch = make_batch(seed, prefill=prefill, width=3)
                ticket = connector.request(batch)
                for table_index in (1, 0, 2):
                    rows = connector.wait(ticket, table_index=table_index)
                    assert torch.equal(rows, expected_rows(tables[table_index], batch))
            # Awaited for one table only: the end of the forward frees the rest.
            ticket = connector.request(make_batch(3, prefill=False, width=3))
            connector.wait(ticket, table_index=0)
            with pytest.raises(ArgumentError, match="awaited before"):
                connector.wait(ticket, table_index=0)
            with pytest.raises(SlotsBusyError):
                connector.request(make_batch(4, prefill=False, width=3))
            connector.release_outputs()
            batch = make_batch(5, prefill=False, width=3)
            rows = connector.wait(connector.request(batch), table_index=2)
            assert torch.equal(rows, expected_rows(third, batch))


def test_wrong_arguments_are_named(table: Table, connector: Connector) -> None:
    foreign = make_batch(0)
    foreign.token_ids[2] = 97
    with pytest.raises(TokenError, match=r"token_ids\[2\].*96, got 97"):
        connector.request(foreign)
    with pytest.raises(ArgumentError, match="max_tokens = 16"):
        connector.request(make_batch(0, lengths=(17,)))
    with pytest.raises(ArgumentError, match="2 columns"):
        connector.request(make_batch(0, width=3))
    with pytest.raises(ArgumentError, match="table_index"):
        connector.wait(connector.request(make_batch(0)), table_index=1)
    with pytest.raises(ArgumentError, match="worker"):
        Connector(table, max_tokens=1, worker="fiber")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="tables"):
        Connector([], max_tokens=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 1.5), ("max_tokens", "4"), ("max_tokens", 0), ("max_tokens", 1 << 40),
        ("max_tokens", True), ("num_slots", 0), ("num_slots", 1.5), ("num_slots", 1 << 20),
        ("settings", {}), ("prefill_early_request", "no"), ("tables", None), ("tables", 5),
        ("tables[1]", 5), ("server", ""), ("server", 5),
    ],
)  # fmt: skip
def test_a_connector_names_the_argument_that_is_wrong(
    table: Table, name: str, value: object
) -> None:
    arguments: dict[str, object] = {"tables": table, "max_tokens": 4}
    arguments |= {"tables": [table, value]} if name == "tables[1]" else {name: value}
    arguments |= {"worker": "process"} if name == "server" else {}
    with pytest.raises(ArgumentError, match=re.escape(f"{name}: expected")):
        Connector(**arguments)  # type: ignore[arg-type]


def test_memory_that_the_machine_refuses_is_named(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr("gramary.offload.setup.Region", refuse)
    with pytest.raises(CapacityError, match="max_tokens=7"):
        Connector(table, max_tokens=7)


@pytest.mark.parametrize("table_index", [None, "0", 0.0])
def test_a_request_and_a_wait_name_what_they_take(table: Table, table_index: object) -> None:
    with Connector(table, max_tokens=16, settings=QUICK) as connector:
        with pytest.raises(ArgumentError, match="batch: expected a Batch"):
            connector.request(None)  # type: ignore[arg-type]
        ticket = connector.request(make_batch(0))
        with pytest.raises(ArgumentError, match="ticket: expected a Ticket"):
            connector.wait(None)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="table_index: expected an integer"):
            connector.wait(ticket, table_index=table_index)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="on: expected a bool"):
            connector.trace(table_index)  # type: ignore[arg-type]
        connector.wait(ticket)


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_table_that_is_closed_closes_its_connectors_first(worker: str) -> None:
    """The service reads the table's memory: in any order of closing it never outlives it."""
    table, kept = make_table(), make_table("bf16", table_index=1)
    batch = make_batch(1, lengths=(2000, 30))
    connector = Connector([table, kept], max_tokens=2048, worker=worker)
    lone = Connector(kept, max_tokens=2048)
    tickets = [connector.request(batch) for _ in range(2)]
    table.close()
    for call in (
        connector.check,
        connector.stats,
        connector.take_spans,
        lambda: connector.wait(tickets[0]),
        lambda: connector.cancel(tickets[0]),
        lambda: connector.trace(True),
    ):
        with pytest.raises(ClosedError):
            call()
    assert torch.equal(lone.wait(lone.request(batch)), expected_rows(kept, batch))
    connector.close()
    kept.close()
    lone.close()
    with pytest.raises(ClosedError):
        Connector(table, max_tokens=8)


def test_a_table_that_is_not_loaded_is_refused() -> None:
    spec, codec = make_spec(), Codec("bf16", 32, None)
    with Table.empty(spec, codec, num_shards=1) as table, pytest.raises(LoadError):
        Connector(table, max_tokens=8)


def test_a_connector_that_is_dropped_ends_with_requests_under_way() -> None:
    """Nobody called close: its threads are gone before the memory that they read and write."""
    with make_table() as table:
        for _ in range(30):
            connector = Connector(table, max_tokens=2048, settings=QUICK)
            service = connector.service
            connector.request(make_batch(1, lengths=(2000, 30)))
            connector.request(make_batch(2, lengths=(2000, 30)))
            del connector
            gc.collect()
            assert service.why_dead() is not None
