"""The connector's CUDA side, its kernels interpreted on the CPU: ids, words, rows, failures."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from abilities import ask_for
from offload_stage import expected_rows, freeze, make_batch, make_table, wait_until

from gramary import Connector, Settings, Table
from gramary.errors import (
    ArgumentError,
    ClosedError,
    FetchTimeoutError,
    RowFetchError,
    SlotsBusyError,
    TokenError,
    UnsupportedError,
)
from gramary.native.offload import load_u64
from gramary.native.ring import Phase, RingFields, progress_of, state_of
from gramary.offload.memory.ring import RingShape
from gramary.tiers.device import DeviceTier
from gramary.tiers.host import HostTier
from gramary.tiers.residency import Residency

QUICK = Settings(request_timeout_s=0.3, num_threads=1)
PATIENT = Settings(request_timeout_s=20, num_threads=1)

Make = Callable[..., Connector]


@pytest.fixture
def table() -> Iterator[Table]:
    with make_table() as opened:
        yield opened


@pytest.fixture(params=["in place", "copied"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rows are read in place over the bus, or copied first."""
    ask_for("triton")
    rows = 1 if request.param == "copied" else 1 << 30
    monkeypatch.setattr("gramary.offload.cuda.take.COPIED_FROM_ROWS", rows)
    return str(request.param)


def same(rows: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(rows, expected)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", ["bf16", "fp8", "nvfp4"])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.uint8])
def test_rows_of_both_lanes(cuda_connector: Make, codec: str, dtype: torch.dtype | None) -> None:
    with make_table(codec) as table, cuda_connector(table, max_tokens=16) as connector:
        for seed, prefill in enumerate((True, False, False, True, True, True)):
            batch = make_batch(seed, prefill=prefill)
            rows = connector.wait(connector.request(batch), dtype=dtype)
            assert same(rows, expected_rows(table, batch, dtype))
        connector.check()


@pytest.mark.usefixtures("way")
@pytest.mark.behaviour(25)
def test_padding_is_neither_asked_for_nor_read(cuda_connector: Make, table: Table) -> None:
    """Behaviour 25: tokens behind query_start_loc[-1], also ones outside the vocabulary."""
    real = make_batch(4)
    tokens = torch.cat([real.token_ids, torch.tensor([-7, 1 << 40, 96])])
    padded = dataclasses.replace(real, token_ids=tokens, num_padding=3)
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        ticket = connector.request(padded)
        rows = connector.wait(ticket)
        assert same(rows[:8], expected_rows(table, real))
        assert not rows[8:].any()
        assert ticket.slot is not None
        assert (connector._region.ids(ticket.slot, 0, 11)[8:] == -1).all()
        empty = make_batch(0, lengths=(), prefill=False)
        assert connector.wait(connector.request(empty)).shape == (0, table.spec.embed_dim)
        connector.check()


def test_the_request_kernel_writes_the_slots_words(cuda_connector: Make, table: Table) -> None:
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        connector.service.native.hold(True)
        region, slot = connector._region, connector._region.ring.stream_slots[0]
        for number in (1, 2, 3):
            batch = make_batch(number, prefill=False)
            ticket = connector.request(batch)
            header = region.address + slot.header
            assert load_u64(header + RingFields.SLOT_NUM_TOKENS) == 8
            assert region.slot_number(slot) == number
            state = load_u64(header + RingFields.SLOT_STATES)
            assert state == state_of(number, Phase.REQUESTED)
            connector.service.native.hold(False)
            assert same(connector.wait(ticket), expected_rows(table, batch))
            assert region.released(slot) == number
            assert not region.wait_ready(slot, 0, 0)
            connector.service.native.hold(True)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("prefill", [True, False])
def test_kind_18_rows_of_device_extents_are_merged_and_counted(
    cuda_connector: Make, table: Table, prefill: bool
) -> None:
    """Rows in the device's own memory are not fetched; the consumer knows them by their ids."""
    with make_table() as split:
        whole = split.residency.host
        assert whole is not None
        cut = split.spec.num_rows // 2
        device = DeviceTier(0, cut, whole.row_bytes, torch.device("cpu"))
        device.write(0, whole.rows[:cut])
        host = HostTier(cut, split.spec.num_rows - cut, whole.row_bytes)
        host.write(cut, whole.rows[cut:])
        split._store.residency = Residency(device, host)
        with cuda_connector(split, max_tokens=16, settings=PATIENT) as connector:
            for seed in range(4):
                batch = make_batch(seed, prefill=prefill)
                ticket = connector.request(batch)
                assert same(connector.wait(ticket), expected_rows(table, batch))
                assert ticket.slot is not None
                asked = connector._region.ids(ticket.slot, 0, 8)
                if not prefill:
                    assert ((asked == -1) | (asked >= cut)).all()
                    assert (asked == -1).any()
        # Which of a launch's rows lay on the device, it alone knows.
        num_rows = 4 * batch.num_tokens * split.spec.num_heads
        assert device.stats()["num_unsplit_rows"] == num_rows
        assert device.stats()["num_rows"] == 0
        whole.close()


@pytest.mark.usefixtures("way")
def test_several_layers_in_any_order(cuda_connector: Make) -> None:
    with (
        make_table("fp8") as first,
        make_table("nvfp4", table_index=1) as second,
        make_table("bf16", table_index=2, ngram_size=4) as third,
        cuda_connector([first, second, third], max_tokens=16, settings=PATIENT) as connector,
    ):
        tables = [first, second, third]
        for seed, prefill in ((0, True), (1, False), (2, True), (3, False)):
            batch = make_batch(seed, prefill=prefill, width=3)
            ticket = connector.request(batch)
            for table_index in (1, 0, 2):
                rows = connector.wait(ticket, table_index=table_index)
                assert same(rows, expected_rows(tables[table_index], batch))
                assert ticket.is_released == (table_index == 2)
        for prefill in (True, False):
            ticket = connector.request(make_batch(3, prefill=prefill, width=3))
            connector.wait(ticket, table_index=1)
            connector.release_outputs()
            batch = make_batch(5, prefill=prefill, width=3)
            rows = connector.wait(connector.request(batch), table_index=2)
            assert same(rows, expected_rows(third, batch))
            connector.release_outputs()


@pytest.mark.usefixtures("way")
@pytest.mark.behaviour(32)
@pytest.mark.parametrize("prefill", [True, False])
def test_a_failed_request_is_nan_and_told_later(
    cuda_connector: Make, table: Table, prefill: bool
) -> None:
    """Behaviour 32: an I/O error poisons its own request, and the next call names it."""
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        connector.service.native.set_script(fail_every=2)
        for seed in range(6):
            batch = make_batch(seed, prefill=prefill)
            out = torch.zeros(8, table.spec.embed_dim)
            connector.wait(connector.request(batch), out=out)
            if seed % 2:
                assert out.isnan().all()
                with pytest.raises(RowFetchError, match="restart them") as caught:
                    connector.request(batch)
                assert caught.value.errno == 5
            else:
                assert same(out, expected_rows(table, batch, torch.float32))


@pytest.mark.usefixtures("way")
@pytest.mark.behaviour(32)
@pytest.mark.parametrize("prefill", [True, False])
def test_the_watchdog_lets_the_stream_go(cuda_connector: Make, table: Table, prefill: bool) -> None:
    """Behaviour 32: a slow worker never hangs a stream, and its late answer is nobody's."""
    with cuda_connector(table, max_tokens=16, num_slots=1, settings=QUICK) as connector:
        service = connector.service.native
        service.hold(True)
        out = torch.zeros(8, table.spec.embed_dim)
        began = time.monotonic()
        connector.wait(connector.request(make_batch(0, prefill=prefill)), out=out)
        assert 0.25 < time.monotonic() - began < 5
        assert out.isnan().all()
        with pytest.raises(FetchTimeoutError, match="GRAMARY_REQUEST_TIMEOUT_S"):
            connector.check()
        connector.check()
        with pytest.raises(FetchTimeoutError, match="quarantined"):
            connector.request(make_batch(1, prefill=prefill))
        service.hold(False)
        wait_until(lambda: connector.stats()["late_answers"] == 1)
        for seed in range(2, 5):
            batch = make_batch(seed, prefill=prefill)
            rows = connector.wait(connector.request(batch))
            assert same(rows, expected_rows(table, batch))
        connector.check()


@pytest.mark.usefixtures("way")
def test_wrong_tokens_are_nan_and_told_later(cuda_connector: Make, table: Table) -> None:
    batch = make_batch(3, prefill=False)
    batch.token_ids[6] = 97
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        rows = connector.wait(connector.request(batch), dtype=torch.float32)
        is_wrong = rows.isnan().any(1)
        assert is_wrong[6]
        good = dataclasses.replace(batch, token_ids=batch.token_ids.clamp(max=96))
        expected = expected_rows(table, good, torch.float32)
        assert same(rows[~is_wrong], expected[~is_wrong])
        assert (~is_wrong).sum() >= 5
        with pytest.raises(TokenError, match=r"token_ids\[6\].*96, got 97"):
            connector.check()
        connector.check()


def test_cancel_in_both_lanes(cuda_connector: Make, table: Table) -> None:
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        for prefill in (True, False):
            for seed in range(20):
                connector.cancel(connector.request(make_batch(seed, prefill=prefill)))
            batch = make_batch(99, prefill=prefill)
            rows = connector.wait(connector.request(batch))
            assert same(rows, expected_rows(table, batch))
        first = connector.request(make_batch(1))
        second = connector.request(make_batch(2))
        with pytest.raises(SlotsBusyError, match="num_slots"):
            connector.request(make_batch(3))
        connector.cancel(first)
        third = connector.request(make_batch(3))
        for ticket, seed in ((third, 3), (second, 2)):
            assert same(connector.wait(ticket), expected_rows(table, make_batch(seed)))
        connector.check()


def test_streams_have_slots_of_their_own(
    cuda_connector: Make, table: Table, streams: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shape(*arguments: object) -> RingShape:
        return dataclasses.replace(ring_shape(*arguments), num_stream_slots=2)

    from gramary.offload.setup import ring_shape

    monkeypatch.setattr("gramary.offload.connector.ring_shape", shape)
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        pending = []
        for stream in (0, 1):
            streams.stream = stream  # type: ignore[attr-defined]
            batch = make_batch(stream, prefill=False)
            pending.append((connector.request(batch), batch))
            with pytest.raises(SlotsBusyError, match="in use by the ticket of the stream lane"):
                connector.request(batch)
        for ticket, batch in pending:
            assert same(connector.wait(ticket), expected_rows(table, batch))
        streams.stream = 2  # type: ignore[attr-defined]
        with pytest.raises(SlotsBusyError, match="2 streams"):
            connector.request(make_batch(0, prefill=False))


def test_what_a_graph_may_not_hold(cuda_connector: Make, table: Table, streams: object) -> None:
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        early = connector.request(make_batch(0))
        streams.capturing = True  # type: ignore[attr-defined]
        with pytest.raises(ArgumentError, match="one CUDA graph"):
            connector.wait(early)
        streams.capturing = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("prefill", [True, False])
def test_what_is_refused_while_capturing_can_be_done_behind_it(
    cuda_connector: Make, streams: object, prefill: bool
) -> None:
    """A ticket stays as it was: its slot is neither lost nor released twice."""
    with (
        make_table() as first,
        make_table(table_index=1) as second,
        cuda_connector([first, second], max_tokens=16, settings=PATIENT) as connector,
    ):
        for seed in range(4):
            batch = make_batch(seed, prefill=prefill)
            ticket = connector.request(batch)
            if seed % 2:
                connector.wait(ticket, table_index=0)
            streams.capturing = True  # type: ignore[attr-defined]
            refused = [lambda: connector.wait(ticket, table_index=1)]  # noqa: B023
            if seed % 2:
                refused.append(connector.release_outputs)
            elif not prefill:
                refused.append(lambda: connector.cancel(ticket))  # noqa: B023
            for call in refused:
                with pytest.raises(ArgumentError, match="one CUDA graph"):
                    call()
            streams.capturing = False  # type: ignore[attr-defined]
            assert connector.stats()["open_tickets"] == 1
            connector.release_outputs() if seed % 2 else connector.cancel(ticket)
            assert connector.stats()["open_tickets"] == 0
        batch = make_batch(9, prefill=prefill)
        ticket = connector.request(batch)
        assert same(connector.wait(ticket, table_index=1), expected_rows(second, batch))
        assert same(connector.wait(ticket, table_index=0), expected_rows(first, batch))
        connector.check()


def test_host_tensors_are_refused_while_capturing(
    cuda_connector: Make, table: Table, streams: object
) -> None:
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        streams.capturing = True  # type: ignore[attr-defined]
        connector._device.device = torch.device("meta")
        with pytest.raises(UnsupportedError, match="captured"):
            connector.request(make_batch(0, prefill=False))
        streams.capturing = False  # type: ignore[attr-defined]


@pytest.mark.usefixtures("way")
@pytest.mark.behaviour(32)
def test_a_killed_worker_lets_the_stream_go_and_is_named(
    cuda_connector: Make, table: Table
) -> None:
    """Behaviour 32: a dead worker is found by the watchdog, whichever lane waits for it."""
    with cuda_connector(table, max_tokens=16, worker="process", settings=PATIENT) as connector:
        pid = connector.service.process.pid
        freeze(pid)
        tickets = [connector.request(make_batch(i, prefill=i == 0)) for i in range(2)]
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        for ticket in tickets:
            out = torch.zeros(8, table.spec.embed_dim)
            # The watchdog's word on one request may come with a call about another.
            while len(ticket.awaited) == 0:
                with contextlib.suppress(FetchTimeoutError):
                    connector.wait(ticket, out=out)
            assert out.isnan().all()
        # Long before the time of a request is over; the kernels are interpreted.
        assert time.monotonic() - began < PATIENT.request_timeout_s - 5
        for _ in range(2):
            with pytest.raises(RowFetchError, match=f"worker process {pid} was killed by signal 9"):
                connector.request(make_batch(1))


def test_close_lets_go_of_everything(cuda_connector: Make, table: Table) -> None:
    connector = cuda_connector(table, max_tokens=16, settings=PATIENT)
    connector.service.native.hold(True)
    ticket = connector.request(make_batch(0))
    connector.request(make_batch(1, prefill=False))
    device = connector._device
    connector.close()
    connector.close()
    assert not device.watchdog._thread.is_alive()
    for call in (lambda: connector.wait(ticket), lambda: connector.request(make_batch(2))):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.usefixtures("way")
@pytest.mark.behaviour(28)
@pytest.mark.parametrize("num_slots", [2, 4])
def test_order_under_random_delays_with_tensors_refilled_in_place(
    cuda_connector: Make, table: Table, num_slots: int
) -> None:
    """Behaviour 28: what a replay does, step by step: the same tensors, new tokens every time."""
    lengths = (1,) * 32
    step = make_batch(0, lengths=lengths, prefill=False)
    with cuda_connector(table, max_tokens=64, num_slots=num_slots, settings=PATIENT) as connector:
        connector.service.native.set_script(max_delay_us=2000, seed=num_slots)
        pending = []
        for seed in range(6):
            chunk = make_batch(seed, lengths=tuple(i % 4 for i in range(32)))
            pending.append((connector.request(chunk), chunk))
            if len(pending) == num_slots:
                ticket, oldest = pending.pop(0)
                assert same(connector.wait(ticket), expected_rows(table, oldest))
            new = make_batch(100 + seed, lengths=lengths, prefill=False)
            step.token_ids.copy_(new.token_ids)
            assert step.history is not None
            assert new.history is not None
            step.history.copy_(new.history)
            assert same(connector.wait(connector.request(step)), expected_rows(table, new))
        connector.check()


def test_a_large_prompt_is_copied_part_by_part_behind_its_progress(
    cuda_connector: Make, table: Table, streams: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gramary.offload.cuda.take.COPIED_FROM_ROWS", 1)
    monkeypatch.setattr("gramary.offload.cuda.bring._ROWS_A_COPY", 8)
    waited: list[tuple[int, int]] = []
    wait = streams.wait  # type: ignore[attr-defined]

    def noting_wait(address: int, value: int) -> None:
        waited.append((address, value))
        wait(address, value)

    monkeypatch.setattr(streams, "wait", noting_wait)
    with cuda_connector(table, max_tokens=16, num_slots=2, settings=PATIENT) as connector:
        region = connector._region
        for number in range(1, 6):
            batch = make_batch(number, lengths=(8, 3))
            waited.clear()
            assert same(connector.wait(connector.request(batch)), expected_rows(table, batch))
            slot = region.ring.host_slot(number)
            at = region.progress_address(slot, 0)
            # 44 rows in copies of 8 and more: four, behind every second eighth.
            parts = [value for address, value in waited if address == at]
            assert parts == [progress_of(number, part) for part in (2, 4, 6, 8)]
            assert waited[-1] == (region.ready_address(slot, 0), 1)


def test_a_request_given_up_lets_go_of_a_stream_that_waits_for_its_progress(
    cuda_connector: Make, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gramary.offload.cuda.take.COPIED_FROM_ROWS", 1)
    with cuda_connector(table, max_tokens=16, num_slots=1, settings=QUICK) as connector:
        service = connector.service.native
        service.hold(True)
        out = torch.zeros(8, table.spec.embed_dim)
        connector.wait(connector.request(make_batch(0)), out=out)
        assert out.isnan().all()
        service.hold(False)
        wait_until(lambda: connector.stats()["late_answers"] == 1)
        with pytest.raises(FetchTimeoutError):
            connector.check()
        for seed in range(1, 4):
            batch = make_batch(seed)
            assert same(connector.wait(connector.request(batch)), expected_rows(table, batch))
