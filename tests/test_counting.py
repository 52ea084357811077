"""Kind 18: what is dropped is counted, and what memory gives out as what a disk does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from abilities import ask_for
from offload_stage import make_batch, make_table
from table_stage import encoded_table, small_spec, write_table_folder

from gramary import Connector, Settings, Table
from gramary.errors import FetchTimeoutError, RowIdError
from gramary.native.offload import time_answer
from gramary.offload.service.base import ThreadService
from gramary.offload.service.stores import store_arguments
from gramary.offload.setup import make_region, ring_shape
from gramary.reading.launch_counts import LaunchCounts
from gramary.tiers.device import DeviceTier
from gramary.tiers.host import HostTier
from gramary.tiers.residency import Residency

SPEC = small_spec()
SETTINGS = Settings(num_threads=1, request_timeout_s=20)
# Stands for memory that a GPU reads.
REGISTERED = SimpleNamespace(device_address=1 << 40, way="as a test", close=lambda: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoded, codec = encoded_table(SPEC, "fp8")
    return write_table_folder(tmp_path_factory.mktemp("model"), SPEC, encoded, codec)


def facts(table: Table) -> dict[str, Mapping[str, Any]]:
    return {tier.name: tier.facts for tier in table.stats().tiers}


def counted(table: Table, tier: str) -> tuple[int, int]:
    found = facts(table)[tier]
    return found["num_rows"], found["row_bytes"]


@pytest.mark.behaviour(34)
def test_kind_18_host_rows_are_counted_as_disk_rows_are(folder: Path) -> None:
    """Behaviour 34: every row that a tier gave out, once; no padding, no row of another tier."""
    with Table.open(folder, placement="host=10000,disk") as table:
        assert table.residency.disk is not None
        first = table.residency.disk.first_row
        table.lookup(torch.tensor([0, 1, first, first, first + 1, -1]))
        assert counted(table, "host") == (2, 2 * 32)
        assert counted(table, "disk") == (3, 3 * 32)
        # A large one, whose pieces several threads take.
        row_ids = torch.randint(-1, SPEC.num_rows, (50_000,), generator=torch.manual_seed(1))
        num_host = int(((row_ids >= 0) & (row_ids < first)).sum())
        table.lookup(row_ids)
        assert counted(table, "host")[0] == 2 + num_host
        assert counted(table, "disk")[0] == 3 + int((row_ids >= first).sum())
        tokens, starts = torch.arange(40), torch.tensor([0, 30], dtype=torch.int32)
        table.embed(tokens, starts)
        total = counted(table, "host")[0] + counted(table, "disk")[0]
        assert total == 2 + 3 + int((row_ids >= 0).sum()) + 30 * SPEC.num_heads


def test_kind_18_a_table_in_memory_counts_what_any_thread_reads(folder: Path) -> None:
    with Table.open(folder, placement="host") as table:
        assert counted(table, "host") == (0, 0), "loading is no reading"
        tokens, starts = torch.arange(1000) % 60, torch.tensor([0, 900], dtype=torch.int32)

        def read() -> None:
            for _ in range(20):
                table.embed(tokens, starts)
                table.lookup(torch.tensor([3, -1, 4]))

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        num_rows = 60 * (900 * SPEC.num_heads + 2)
        assert counted(table, "host") == (num_rows, num_rows * 32)
        assert facts(table)["host"]["num_unsplit_rows"] == 0
        with pytest.raises(RowIdError):
            table.lookup(torch.tensor([SPEC.num_rows]))
        assert counted(table, "host")[0] == num_rows


def test_kind_18_rows_that_a_service_here_reads_are_the_tiers_too() -> None:
    """As with a disk tier, whose reader the service shares; the connector counts them as well."""
    with (
        make_table() as table,
        Connector(table, max_tokens=600, settings=SETTINGS) as connector,
    ):
        for prefill in (True, False):
            batch = make_batch(1, lengths=(500, 30), prefill=prefill)
            connector.wait(connector.request(batch))
        stats = connector.stats()
        assert stats["host_rows"] == 2 * 530 * table.spec.num_heads
        assert counted(table, "host") == (stats["host_rows"], stats["host_bytes"])


@pytest.mark.parametrize("tiers", ["device", "device,host", "device,host,disk"])
def test_kind_18_a_launch_is_counted_by_the_rows_that_it_was_asked_for(tiers: str) -> None:
    """What lay in which of two tiers only the GPU knows; nothing is asked of it."""
    device, host = DeviceTier(0, 10, 32, torch.device("cpu")), HostTier(10, 10, 32)
    host._registration = cast(Any, REGISTERED)
    disk = cast(Any, SimpleNamespace(first_row=20)) if "disk" in tiers else None
    counts = LaunchCounts(Residency(device, host if "host" in tiers else None, disk))
    counts.count(100)
    counts.count(7, reads_host=False)
    device_facts, host_facts = device.stats(), host.stats()
    is_only = tiers == "device"
    assert device_facts["num_rows"] == (107 if is_only else 0)
    assert device_facts["row_bytes"] == 32 * cast(int, device_facts["num_rows"])
    assert device_facts["num_unsplit_rows"] == (0 if is_only else 107)
    assert host_facts["num_unsplit_rows"] == (0 if is_only else 100)
    device.counts.reset()
    assert device.stats()["num_rows"] == device.stats()["num_unsplit_rows"] == 0
    host.close()


@pytest.mark.needs("prometheus_client")
def test_kind_18_metrics_tell_the_rows_of_every_tier(folder: Path) -> None:
    import prometheus_client

    from gramary.metrics import TableCollector

    registry = prometheus_client.CollectorRegistry()
    with Table.open(folder, placement="host=10000,disk") as table:
        registry.register(TableCollector({"a": table}))
        table.lookup(torch.tensor([0, 1, 2, SPEC.num_rows - 1]))
        for tier, num_rows in (("host", 3), ("disk", 1)):
            labels = {"table": "a", "tier": tier}
            for name, expected in (("rows", num_rows), ("bytes", 32 * num_rows)):
                value = registry.get_sample_value(f"gramary_tier_read_{name}_total", labels)
                assert value == expected
            unsplit = registry.get_sample_value("gramary_tier_unsplit_rows_total", labels)
            assert unsplit == 0


def test_kind_18_spans_that_an_engine_drops_are_in_the_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gramary.tracing.spans.MAX_SPANS", 3)
    with (
        make_table() as table,
        Connector(table, max_tokens=16, settings=SETTINGS) as connector,
    ):
        connector.trace(True)
        for _ in range(2):
            connector.wait(connector.request(make_batch(1)))
        assert len([span for span in connector.take_spans() if span.track == "engine"]) == 3
        # Of each: write_inputs, wait_rows, copy_rows, release.
        assert connector.stats()["dropped_spans"] == 8 - 3


def test_kind_18_spans_that_the_service_drops_are_in_its_counters() -> None:
    """The core keeps 65536; three layers fill it the sooner."""
    tables = [make_table(table_index=index) for index in range(3)]
    region = make_region(ring_shape(tables, 1, 1), torch.device("cpu"))
    service = ThreadService(region, tuple(map(store_arguments, tables)), SETTINGS)
    service.start()
    service.trace(True)
    slot = region.ring.stream_slots[0]
    number = 0
    header, ready = region.address + slot.header, region.ready_address(slot, 2)
    while 6 * number < (1 << 16) + 600:
        number += 1
        region.request_slot(slot, number, 0)
        assert time_answer(header, ready, number) >= 0
    service.stop()
    dropped = region.counters()["dropped_spans"]
    kept = service.take_spans()
    region.close()
    for table in tables:
        table.close()
    assert len(kept) == 1 << 16
    assert dropped == 6 * number - len(kept)


def test_kind_18_spans_of_a_device_are_bounded_and_counted(
    make_device_spans: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marks are kept until they are taken: no more of them than of any spans."""
    monkeypatch.setattr("gramary.offload.cuda.device_spans.MAX_SPANS", 4)
    spans = make_device_spans()
    spans.switch(True)
    for _ in range(7):
        with spans.span("copy_rows", "host", 1):
            pass
    assert len(spans.take()) == 4
    assert spans.num_dropped == 3
    with spans.span("copy_rows", "host", 1):
        pass
    assert (len(spans.take()), spans.num_dropped) == (1, 3)


@pytest.fixture
def make_device_spans() -> Callable[[], Any]:
    ask_for("triton")
    from cuda_side_stage import CallingThread

    from gramary.offload.cuda.device_spans import DeviceSpans

    return lambda: DeviceSpans(CallingThread(), "stream")


@pytest.mark.needs("triton")
def test_kind_18_errors_that_found_no_room_are_counted() -> None:
    from gramary.offload.cuda import device

    stand_in: Any = SimpleNamespace(
        _errors=device.deque(maxlen=device.MAX_ERRORS), _turn=threading.Lock(),
        _num_errors_dropped=0, _failures=list, _token_errors=list,
    )  # fmt: skip
    for number in range(device.MAX_ERRORS + 9):
        device.CudaDevice._keep_error(stand_in, FetchTimeoutError(f"request {number}"))
    error = device.CudaDevice.take_error(stand_in)
    assert "request 9 (and 72 more: request 10; " in str(error)
    assert device.CudaDevice.take_error(stand_in) is None
