"""What a connector tells of its requests: every span by its fixed name, on the host and a GPU."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from offload_stage import expected_rows, make_batch, make_table
from table_stage import encoded_table, small_spec, write_table_folder

from gramary import Batch, Connector, Settings, Table
from gramary.offload.service.base import ThreadService
from gramary.offload.service.stores import store_arguments
from gramary.offload.setup import make_region, ring_shape
from gramary.tracing import SPAN_NAMES, Span

SETTINGS = Settings(num_threads=1)


@pytest.fixture
def table() -> Iterator[Table]:
    with make_table() as opened:
        yield opened


def require_order(spans: list[Span], *names: str) -> None:
    """Requires these spans, one each, none beginning before the one before it."""
    found = [next(span for span in spans if span.name == name) for name in names]
    for before, after in itertools.pairwise(found):
        assert before.begin_ns <= after.begin_ns, f"{before.name} begins behind {after.name}"
    for span in found:
        assert span.begin_ns <= span.end_ns


def test_a_host_lane_request_from_inputs_to_release(table: Table) -> None:
    with Connector(table, max_tokens=600, settings=SETTINGS) as connector:
        connector.trace(True)
        for seed in range(3):
            connector.wait(connector.request(make_batch(seed, lengths=(500, 30))))
        spans = connector.take_spans()
        assert {span.name for span in spans} <= set(SPAN_NAMES)
        for number in (1, 2, 3):
            own = [span for span in spans if (span.lane, span.number) == ("host", number)]
            require_order(own, "write_inputs", "gather", "publish", "copy_rows", "release")
            require_order(own, "write_inputs", "wait_rows", "copy_rows")
            gathered = next(span for span in own if span.name == "gather")
            waited = next(span for span in own if span.name == "wait_rows")
            assert gathered.end_ns <= waited.end_ns
        assert {span.track for span in spans} == {"engine", "service, host lane"}
        assert connector.take_spans() == []


def test_a_stream_lane_request_waits_for_its_tokens_first(table: Table) -> None:
    with Connector(table, max_tokens=600, settings=SETTINGS) as connector:
        connector.trace(True)
        connector.wait(connector.request(make_batch(1, prefill=False)))
        spans = connector.take_spans()
        assert {(span.lane, span.number) for span in spans} == {("stream", 1)}
        require_order(
            spans, "wait_tokens", "write_inputs", "gather", "publish", "copy_rows", "release"
        )


def test_waiting_for_a_slot_and_reading_a_disk_have_names_of_their_own(tmp_path: Path) -> None:
    spec = small_spec()
    encoded, codec = encoded_table(spec, "fp8")
    folder = write_table_folder(tmp_path, spec, encoded, codec)
    prompt = torch.arange(40) + 100
    batches = [Batch.from_prompts(spec, [prompt], [start], [10]) for start in (0, 10, 20, 30)]
    with (
        Table.open(folder, placement="disk") as table,
        Connector(table, max_tokens=10, num_slots=1, settings=SETTINGS) as connector,
    ):
        connector.trace(True)
        for batch in batches:
            ticket = connector.request(batch)
            connector.wait(ticket)
        names = [span.name for span in connector.take_spans()]
    assert names.count("read_disk") == 4
    assert "gather" not in names


def test_the_service_tells_how_long_it_waited_for_a_slot(table: Table) -> None:
    """As a GPU's stream may be late: a slot's next request is there before its last is released."""
    batch = make_batch(1)
    region = make_region(ring_shape([table], 16, num_slots=1), table.device)
    service = ThreadService(region, (store_arguments(table),), SETTINGS)
    service.start()
    service.trace(True)
    slot = region.ring.host_slot(1)
    for number in (1, 2):
        region.write_inputs(
            number,
            batch.token_ids,
            batch.query_start_loc,
            batch.history,
            97,
        )
        region.announce(number)
    assert region.wait_ready(slot, 0, 10)
    region.clear_ready(slot, 0)
    time.sleep(0.05)
    assert region.done(slot) == 1
    region.release(slot, 1)
    assert region.wait_ready(slot, 0, 10)
    service.stop()
    waited = [span for span in service.take_spans() if span.name == "wait_previous_request"]
    region.close()
    assert [(span.lane, span.number) for span in waited] == [("host", 2)]
    assert waited[0].end_ns - waited[0].begin_ns >= 40_000_000


def test_off_nothing_is_kept_and_the_rows_are_the_same(table: Table) -> None:
    batch = make_batch(4, lengths=(200, 30))
    with Connector(table, max_tokens=600, settings=SETTINGS) as connector:
        rows = [connector.wait(connector.request(batch))]
        assert connector.take_spans() == []
        connector.trace(True)
        rows.append(connector.wait(connector.request(batch)))
        connector.trace(False)
        rows.append(connector.wait(connector.request(batch)))
        spans = connector.take_spans()
    assert {span.number for span in spans} == {2}
    for got in rows:
        assert torch.equal(got, expected_rows(table, batch))


def test_a_failed_request_has_spans_too(table: Table) -> None:
    from gramary.errors import RowFetchError

    with Connector(table, max_tokens=16, settings=SETTINGS) as connector:
        connector.trace(True)
        connector.service.native.set_script(fail_every=1)  # type: ignore[attr-defined]
        with pytest.raises(RowFetchError):
            connector.wait(connector.request(make_batch(1)))
        spans = connector.take_spans()
    require_order(spans, "write_inputs", "wait_rows", "release")
    assert "copy_rows" not in {span.name for span in spans}
