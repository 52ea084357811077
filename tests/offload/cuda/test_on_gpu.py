"""The connector on a GPU: eager and captured, ordered under delays, never hanging, never lying."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from offload_stage import expected_rows, freeze, make_batch, make_table, wait_until
from table_stage import encoded_table, small_spec, write_table_folder

from gramary import Batch, Connector, Settings, Table
from gramary.errors import (
    ArgumentError,
    ClosedError,
    FetchTimeoutError,
    RowFetchError,
    SlotsBusyError,
    TokenError,
    UnsupportedError,
)

pytestmark = pytest.mark.gpu

# Every batch rings, however small; nothing takes longer than the time-out to go wrong.
FORCED = Settings(force_doorbell=True, request_timeout_s=5, host_gather_rows=4096)
QUICK = dataclasses.replace(FORCED, request_timeout_s=0.3)

SPLIT = "device=30KiB,host"


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    """The truth, on the CPU."""
    with make_table() as opened:
        yield opened


@pytest.fixture(scope="module")
def cuda_table() -> Iterator[Table]:
    with make_table(device="cuda", settings=FORCED) as opened:
        yield opened


@pytest.fixture(params=["in place", "copied"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 1 if request.param == "copied" else 1 << 30
    monkeypatch.setattr("gramary.offload.cuda.take.COPIED_FROM_ROWS", rows)


@pytest.fixture(params=["memory operations", "tiny kernels"])
def waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tiny kernels":
        name = "gramary.offload.cuda.streams.why_no_memory_operations"
        monkeypatch.setattr(name, lambda _device: "the test wants none")


def on_gpu(batch: Batch) -> Batch:
    history = None if batch.history is None else batch.history.cuda()
    return Batch(batch.token_ids.cuda(), batch.query_start_loc.cuda(), history=history)


class Stage:
    """A captured step: request, other work, wait; with tensors to fill before each replay."""

    def __init__(
        self, connector: Connector, tables: list[Table], num_tokens: int, num_requests: int
    ) -> None:
        self.tables = tables
        width = max(table.spec.history_length for table in tables)
        self.batch = Batch(
            torch.zeros(num_tokens, dtype=torch.int32, device="cuda"),
            torch.zeros(num_requests + 1, dtype=torch.int32, device="cuda"),
            history=torch.zeros(num_requests, width, dtype=torch.int64, device="cuda"),
        )
        self.outs = [
            torch.zeros(num_tokens, table.spec.embed_dim, dtype=torch.bfloat16, device="cuda")
            for table in tables
        ]
        self.other = torch.ones(256, 256, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(connector)
            stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                self._step(connector)
        torch.cuda.synchronize()

    def _step(self, connector: Connector) -> None:
        ticket = connector.request(self.batch)
        self.other = self.other @ self.other / 256
        for table_index, out in enumerate(self.outs):
            connector.wait(ticket, table_index=table_index, out=out)

    def replay(self, batch: Batch) -> None:
        """Fills the tensors and replays."""
        self.fill(batch)
        self.graph.replay()

    def fill(self, batch: Batch) -> None:
        """Fills the tensors, padding what is left; waits for the stream, as pageable copies do."""
        assert batch.history is not None
        self.batch.token_ids.fill_(-9)
        self.batch.token_ids[: batch.num_tokens] = batch.token_ids.cuda().int()
        self.batch.query_start_loc.fill_(batch.num_tokens)
        self.batch.query_start_loc[: batch.num_requests + 1] = batch.query_start_loc.cuda()
        self.batch.history[: batch.num_requests] = batch.history.cuda()

    def expect(self, truths: list[Table], batch: Batch) -> None:
        """Compares every table's rows with those on the CPU; padding is zero."""
        for out, truth in zip(self.outs, truths, strict=True):
            rows = out.cpu()
            assert torch.equal(rows[: batch.num_tokens], expected_rows(truth, batch))
            assert not rows[batch.num_tokens :].any()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", ["bf16", "fp16", "fp32", "fp8", "nvfp4"])
@pytest.mark.parametrize("placement", ["host", SPLIT])
def test_eager_rows_of_both_lanes(codec: str, placement: str) -> None:
    with (
        make_table(codec) as truth,
        make_table(codec, device="cuda", placement=placement, settings=FORCED) as table,
        Connector(table, max_tokens=16, settings=FORCED) as connector,
    ):
        for dtype in (None, torch.float32, torch.uint8):
            for seed in range(4):
                batch = make_batch(seed, prefill=seed % 2 == 0)
                given = on_gpu(batch) if seed == 1 else batch
                rows = connector.wait(connector.request(given), dtype=dtype)
                assert torch.equal(rows.cpu(), expected_rows(truth, batch, dtype))
        connector.check()
        lanes = connector.stats()["lanes"]
    assert lanes == {"host: prompt-only": 6, "stream: decode": 3, "stream: device tokens": 3}


@pytest.mark.behaviour(28, 24, 25)
@pytest.mark.usefixtures("way", "waiting")
@pytest.mark.parametrize("worker", ["thread", "process"])
@pytest.mark.parametrize("placement", ["host", SPLIT])
def test_replays_with_changing_batches(table: Table, worker: str, placement: str) -> None:
    """Behaviours 24, 25, 28: a replay is a request of its own, its padding reads nothing."""
    with (
        make_table(device="cuda", placement=placement, settings=FORCED) as cuda_table,
        Connector(cuda_table, max_tokens=16, worker=worker, settings=FORCED) as connector,  # type: ignore[arg-type]
    ):
        if worker == "thread":
            connector.service.native.set_script(max_delay_us=300, seed=7)
        stage = Stage(connector, [cuda_table], 12, 3)
        before = connector.stats()["stream_requests"]
        # What earlier tests left in cycles is not to go meanwhile.
        gc.collect()
        allocated = torch.cuda.memory_allocated()
        for seed in range(60):
            lengths = (1 + seed % 5, seed % 3, seed % 4)
            batch = make_batch(seed, lengths=lengths, prefill=False)
            stage.replay(batch)
            stage.expect([table], batch)
        assert torch.cuda.memory_allocated() == allocated
        connector.check()
        assert connector.stats()["stream_requests"] == before + 60
        assert connector.stats()["late_answers"] == 0


def test_replays_back_to_back_without_the_host(table: Table, cuda_table: Table) -> None:
    """Many replays are queued before the first is through; the last one's rows are its own."""
    with Connector(cuda_table, max_tokens=16, settings=FORCED) as connector:
        connector.service.native.set_script(max_delay_us=200, seed=3)
        stage = Stage(connector, [cuda_table], 12, 3)
        batches = [make_batch(seed, prefill=False) for seed in range(100)]
        kept = []
        for batch in batches:
            stage.replay(batch)
            kept.append(stage.outs[0].clone())
        for batch, rows in zip(batches, kept, strict=True):
            assert torch.equal(rows[:8].cpu(), expected_rows(table, batch))


def test_several_layers_in_a_graph() -> None:
    kinds = [
        ("fp8", {}),
        ("nvfp4", {"table_index": 1}),
        ("bf16", {"table_index": 2, "ngram_size": 4}),
    ]
    truths = [make_table(codec, **geometry) for codec, geometry in kinds]
    places = ["host", SPLIT, "device"]
    tables = [
        make_table(codec, device="cuda", placement=place, settings=FORCED, **geometry)
        for (codec, geometry), place in zip(kinds, places, strict=True)
    ]
    with Connector(tables, max_tokens=16, settings=FORCED) as connector:
        stage = Stage(connector, tables, 12, 3)
        for seed in range(20):
            batch = make_batch(seed, prefill=False, width=3)
            stage.replay(batch)
            stage.expect(truths, batch)
            if seed % 4 == 0:
                ticket = connector.request(make_batch(seed, width=3))
                rows = connector.wait(ticket, table_index=seed % 3)
                expected = expected_rows(truths[seed % 3], make_batch(seed, width=3))
                assert torch.equal(rows.cpu(), expected)
                connector.release_outputs()
        connector.check()
    for opened in (*truths, *tables):
        opened.close()


@pytest.mark.behaviour(32)
def test_a_time_out_in_a_graph_is_nan_and_passes(table: Table, cuda_table: Table) -> None:
    """Behaviour 32: the stream goes on with NaN, the late answer is nobody's, then all is well."""
    with Connector(cuda_table, max_tokens=16, settings=QUICK) as connector:
        stage = Stage(connector, [cuda_table], 12, 3)
        service = connector.service.native
        service.hold(True)
        began = time.monotonic()
        for seed in range(3):
            # The second and third do not wait for a time-out of their own.
            stage.replay(make_batch(seed, prefill=False))
        torch.cuda.synchronize()
        assert 0.25 < time.monotonic() - began < 0.8
        assert stage.outs[0].isnan().all()
        with pytest.raises(FetchTimeoutError, match=r"stream slot 0.*GRAMARY_REQUEST_TIMEOUT_S"):
            connector.check()
        connector.check()
        service.hold(False)
        slot = connector._region.ring.stream_slots[0]
        wait_until(lambda: not connector._quarantine.is_locked(slot), seconds=5)
        for seed in range(10, 20):
            batch = make_batch(seed, prefill=False)
            stage.replay(batch)
            stage.expect([table], batch)
        connector.check()


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("prefill", [True, False])
def test_failures_and_time_outs_outside_of_graphs(
    table: Table, cuda_table: Table, prefill: bool
) -> None:
    """Behaviour 32: errors are one request's alone; `wait` and `request` tell of earlier ones."""
    with Connector(cuda_table, max_tokens=16, num_slots=1, settings=QUICK) as connector:
        connector.service.native.set_script(fail_every=2)
        for seed in range(4):
            batch = make_batch(seed, prefill=prefill)
            rows = connector.wait(connector.request(batch))
            torch.cuda.synchronize()
            if seed % 2:
                assert rows.isnan().all()
                with pytest.raises(RowFetchError, match="errno 5"):
                    connector.request(batch)
            else:
                assert torch.equal(rows.cpu(), expected_rows(table, batch))
        connector.service.native.set_script()
        connector.service.native.hold(True)
        rows = connector.wait(connector.request(batch))
        torch.cuda.synchronize()
        assert rows.isnan().all()
        with pytest.raises(FetchTimeoutError, match="GRAMARY_REQUEST_TIMEOUT_S"):
            connector.check()
        with pytest.raises(FetchTimeoutError, match="quarantined"):
            connector.request(batch)
        connector.service.native.hold(False)
        wait_until(lambda: connector.stats()["late_answers"] >= 1, seconds=5)
        rows = connector.wait(connector.request(batch))
        assert torch.equal(rows.cpu(), expected_rows(table, batch))


@pytest.mark.behaviour(32)
def test_a_dead_worker_is_found_within_a_second(table: Table, cuda_table: Table) -> None:
    """Behaviour 32: replays and waits end with NaN, and the error names the process."""
    patient = dataclasses.replace(FORCED, request_timeout_s=60)
    with Connector(cuda_table, max_tokens=16, worker="process", settings=patient) as connector:
        stage = Stage(connector, [cuda_table], 12, 3)
        batch = make_batch(1, prefill=False)
        stage.replay(batch)
        stage.expect([table], batch)
        # A kernel that is launched for the first time is loaded, and waits for the device to do so.
        connector.wait(connector.request(make_batch(0)))
        pid = connector.service.process.pid
        freeze(pid)
        stage.replay(batch)
        rows = connector.wait(connector.request(make_batch(0)))
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        torch.cuda.synchronize()
        assert time.monotonic() - began < 1
        assert rows.isnan().all()
        assert stage.outs[0].isnan().all()
        with pytest.raises(FetchTimeoutError, match=f"worker process {pid} was killed by signal 9"):
            connector.check()
        with pytest.raises(RowFetchError, match=f"worker process {pid}"):
            connector.request(make_batch(1))


@pytest.mark.parametrize("num_slots", [1, 2, 3, 4])
def test_order_under_random_delays(table: Table, cuda_table: Table, num_slots: int) -> None:
    with Connector(cuda_table, max_tokens=300, num_slots=num_slots, settings=FORCED) as connector:
        connector.service.native.set_script(max_delay_us=2000, seed=num_slots)
        lengths = tuple(i % 17 for i in range(32))
        pending, results = [], []
        for seed in range(40):
            batch = make_batch(seed, lengths=lengths)
            pending.append((connector.request(batch), batch))
            if len(pending) == num_slots:
                ticket, oldest = pending.pop(0)
                results.append((connector.wait(ticket), oldest))
            if seed % 3 == 0:
                decode = make_batch(seed, lengths=(1,) * 32, prefill=False)
                results.append((connector.wait(connector.request(on_gpu(decode))), decode))
            if seed % 7 == 0:
                doomed = make_batch(seed, lengths=(1,) * 32, prefill=False)
                connector.cancel(connector.request(on_gpu(doomed)))
        results += [(connector.wait(ticket), batch) for ticket, batch in pending]
        for rows, batch in results:
            assert torch.equal(rows.cpu(), expected_rows(table, batch))
        connector.check()


def test_host_lane_tickets_on_several_streams(table: Table, cuda_table: Table) -> None:
    """A slot's next request waits for its last one's release, whichever stream that is on."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    with Connector(cuda_table, max_tokens=16, num_slots=2, settings=FORCED) as connector:
        connector.service.native.set_script(max_delay_us=500, seed=1)
        results = []
        for seed in range(30):
            batch = make_batch(seed)
            ticket = connector.request(batch)
            if seed % 5 == 4:
                connector.cancel(ticket)
                continue
            with torch.cuda.stream(streams[seed % 3]):
                results.append((connector.wait(ticket), batch))
        torch.cuda.synchronize()
        for rows, batch in results:
            assert torch.equal(rows.cpu(), expected_rows(table, batch))
        connector.check()


def test_busy_slots_and_cancel(table: Table, cuda_table: Table) -> None:
    with Connector(cuda_table, max_tokens=16, settings=FORCED) as connector:
        first, second = connector.request(make_batch(0)), connector.request(make_batch(1))
        with pytest.raises(SlotsBusyError, match="num_slots"):
            connector.request(make_batch(2))
        connector.cancel(first)
        third = connector.request(make_batch(2))
        for ticket, seed in ((third, 2), (second, 1)):
            rows = connector.wait(ticket).cpu()
            assert torch.equal(rows, expected_rows(table, make_batch(seed)))
        for seed in range(50):
            connector.cancel(connector.request(make_batch(seed, prefill=seed % 2 == 0)))
        batch = make_batch(99)
        assert torch.equal(connector.wait(connector.request(batch)).cpu(),
                           expected_rows(table, batch))  # fmt: skip


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_close_in_flight(table: Table, cuda_table: Table, worker: str) -> None:
    patient = dataclasses.replace(FORCED, request_timeout_s=60)
    connector = Connector(cuda_table, max_tokens=16, worker=worker, settings=patient)  # type: ignore[arg-type]
    stage = Stage(connector, [cuda_table], 12, 3)
    prompt, decode = make_batch(0), make_batch(1, prefill=False)
    # Filled first: the host must not wait for a stream that waits for the service.
    stage.fill(decode)
    if worker == "thread":
        connector.service.native.hold(True)
    else:
        freeze(connector.service.process.pid)
        os.kill(connector.service.process.pid, signal.SIGKILL)
    rows = connector.wait(connector.request(prompt)) if worker == "thread" else None
    stage.graph.replay()
    began = time.monotonic()
    connector.close()
    assert time.monotonic() - began < 3
    # The service may have been about to publish one of them; the others are given up.
    results = [(stage.outs[0][:8], decode)]
    results += [] if rows is None else [(rows, prompt)]
    are_lost = [bool(result.isnan().all()) for result, _ in results]
    assert any(are_lost)
    for (result, batch), is_lost in zip(results, are_lost, strict=True):
        assert is_lost or torch.equal(result.cpu(), expected_rows(table, batch))
    with pytest.raises(ClosedError):
        connector.request(make_batch(2))


@pytest.mark.behaviour(34)
def test_lanes_and_equal_bits_with_every_option(table: Table, cuda_table: Table) -> None:
    """Behaviour 34: which batches ring is counted; the bits are the same whichever do."""
    unforced = dataclasses.replace(FORCED, force_doorbell=False)
    options = [
        (cuda_table, unforced, True, "direct: few rows: the GPU reads them"),
        (cuda_table, FORCED, True, "host: prompt-only"),
        (cuda_table, FORCED, False, "stream: prefill_early_request is off"),
    ]
    with make_table(device="cuda", placement="device", settings=FORCED) as on_device:
        options.append((on_device, FORCED, True, "direct: all rows are on the device"))
        for opened, settings, early, lane in options:
            with Connector(
                opened, max_tokens=16, settings=settings, prefill_early_request=early
            ) as connector:
                for seed in range(3):
                    batch = make_batch(seed)
                    ticket = connector.request(batch)
                    rows = connector.wait(ticket).cpu()
                    assert torch.equal(rows, expected_rows(table, batch))
                assert connector.stats()["lanes"] == {lane: 3}
                stage = Stage(connector, [opened], 12, 3)
                for seed in range(5):
                    batch = make_batch(seed, prefill=False)
                    stage.replay(batch)
                    stage.expect([table], batch)


@pytest.mark.parametrize("placement", ["disk", "host=10KiB,disk", "device=5KiB,host=10KiB,disk"])
@pytest.mark.parametrize("worker", ["thread", "process"])
def test_rows_on_disk(tmp_path: Path, placement: str, worker: str) -> None:
    spec = small_spec()
    encoded, codec = encoded_table(spec, "fp8")
    path = write_table_folder(tmp_path / "model", spec, encoded, codec)
    with (
        Table.open(path) as truth,
        Table.open(path, placement=placement, device="cuda") as table,
        Connector(table, max_tokens=16, worker=worker, settings=FORCED) as connector,  # type: ignore[arg-type]
    ):
        stage = Stage(connector, [table], 12, 3)
        for seed in range(20):
            batch = make_batch(seed, prefill=seed % 2 == 0)
            if seed % 2 == 0:
                rows = connector.wait(connector.request(batch)).cpu()
                assert torch.equal(rows, expected_rows(truth, batch))
            else:
                stage.replay(batch)
                stage.expect([truth], batch)
        connector.check()


def test_wrong_tokens_in_a_graph(table: Table, cuda_table: Table) -> None:
    with Connector(cuda_table, max_tokens=16, settings=FORCED) as connector:
        stage = Stage(connector, [cuda_table], 12, 3)
        batch = make_batch(3, prefill=False)
        batch.token_ids[6] = 97
        stage.replay(batch)
        torch.cuda.synchronize()
        is_wrong = stage.outs[0].isnan().any(1)
        assert is_wrong[6]
        assert not is_wrong[:5].any()
        with pytest.raises(TokenError, match=r"token_ids\[6\].*96, got 97"):
            connector.check()
        good = make_batch(4, prefill=False)
        stage.replay(good)
        stage.expect([table], good)


def test_nothing_synchronises(cuda_table: Table) -> None:
    with Connector(cuda_table, max_tokens=16, settings=FORCED) as connector:
        prompt, decode = make_batch(0), on_gpu(make_batch(1, prefill=False))
        for _ in range(2):
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                for batch in (prompt, decode):
                    connector.wait(connector.request(batch))
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_what_a_graph_may_not_hold(cuda_table: Table) -> None:
    with Connector(cuda_table, max_tokens=16, settings=FORCED) as connector:
        connector.wait(connector.request(make_batch(0, prefill=False)))
        early = connector.request(make_batch(0))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.zeros(1, device="cuda")
            with pytest.raises(ArgumentError, match="one CUDA graph"):
                connector.wait(early)
            with pytest.raises(UnsupportedError, match="captured"):
                connector.request(make_batch(0, prefill=False))
        connector.cancel(early)


def leaks(make: Callable[[], None]) -> int:
    """Returns how many descriptors three more calls leave behind."""
    make()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        make()
    return len(os.listdir("/proc/self/fd")) - before


def test_nothing_is_left_behind(cuda_table: Table) -> None:
    def use() -> None:
        with Connector(cuda_table, max_tokens=16, settings=FORCED) as connector:
            connector.wait(connector.request(make_batch(0)))

    assert leaks(use) == 0


@pytest.mark.usefixtures("way", "waiting")
def test_spans_of_a_captured_graph(table: Table, cuda_table: Table) -> None:
    """A graph that is captured while spans are kept tells of each replay, on the host's clock."""
    with Connector(cuda_table, max_tokens=16, settings=FORCED) as connector:
        connector.trace(True)
        stage = Stage(connector, [cuda_table], 16, 4)
        connector.take_spans()
        for seed in range(3):
            batch = make_batch(seed, prefill=False)
            torch.cuda.synchronize()
            before_ns = time.monotonic_ns()
            stage.replay(batch)
            spans = [s for s in connector.take_spans() if s.track == "stream"]
            after_ns = time.monotonic_ns()
            stage.expect([table], batch)
            names = [span.name for span in spans]
            assert names[0] == "write_inputs"
            assert set(names) == {"write_inputs", "wait_rows", "copy_rows", "release"}
            for span in spans:
                # The device's clock is set to the host's once, to some microseconds.
                assert before_ns - 200_000 <= span.begin_ns <= span.end_ns <= after_ns + 200_000
