"""Spans of a device's streams, with events of the calling thread in place of a GPU's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from offload_stage import expected_rows, make_batch, make_table

from gramary import Connector, Settings, Table
from gramary.tracing import SPAN_NAMES, Span

PATIENT = Settings(request_timeout_s=20, num_threads=1)


@pytest.fixture
def table() -> Iterator[Table]:
    with make_table() as opened:
        yield opened


def of_stream(spans: list[Span]) -> list[str]:
    """Returns the names of what the streams did, in order of their ends."""
    own = [span for span in spans if span.track == "stream"]
    return [span.name for span in sorted(own, key=lambda span: (span.end_ns, span.begin_ns))]


@pytest.mark.parametrize("lane", ["host", "stream"])
def test_a_stream_tells_what_it_waited_for_and_copied(
    cuda_connector: Callable[..., Connector], table: Table, lane: str
) -> None:
    batch = make_batch(1, prefill=lane == "host")
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        connector.trace(True)
        rows = connector.wait(connector.request(batch))
        spans = connector.take_spans()
        assert connector.take_spans() == []
    assert torch.equal(rows, expected_rows(table, batch))
    assert {span.name for span in spans} <= set(SPAN_NAMES)
    taken = ["wait_rows", "copy_rows", "release"]
    assert of_stream(spans) == (
        taken if lane == "host" else ["wait_tokens", "write_inputs", *taken]
    )
    gathered = next(span for span in spans if span.name == "gather")
    waited = next(span for span in spans if span.name == "wait_rows")
    assert gathered.end_ns <= waited.end_ns
    assert waited.lane == lane


def test_rows_that_are_copied_piece_by_piece_show_each_wait(
    cuda_connector: Callable[..., Connector], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gramary.offload.cuda.take.COPIED_FROM_ROWS", 1)
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        connector.trace(True)
        connector.wait(connector.request(make_batch(1)))
        names = of_stream(connector.take_spans())
    assert names.count("wait_rows") > 1
    assert names.count("copy_rows") == names.count("wait_rows")
    assert names[-1] == "release"


def test_what_a_graph_does_is_told_of_each_replay(
    cuda_connector: Callable[..., Connector], table: Table, streams: Any
) -> None:
    """Captured marks stay: here the capture itself is the replay, and is told again and again."""
    batch = make_batch(1, prefill=False)
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        connector.wait(connector.request(batch))
        connector.trace(True)
        streams.capturing = True
        connector.wait(connector.request(batch))
        streams.capturing = False
        for _ in range(2):
            names = of_stream(connector.take_spans())
            # When the tokens were asked for, no host code knows.
            assert names == ["write_inputs", "wait_rows", "copy_rows", "release"]


def test_every_event_of_a_graph_lives_as_long_as_the_connector(
    cuda_connector: Callable[..., Connector],
    table: Table,
    streams: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph holds the handles of its events: none may go before its last replay."""
    captured: list[weakref.ref[Any]] = []
    make_event = type(streams).new_event

    def new_event(self: Any) -> Any:
        event = make_event(self)
        if self.capturing:
            captured.append(weakref.ref(event))
        return event

    monkeypatch.setattr(type(streams), "new_event", new_event)
    batch = make_batch(1, prefill=False)
    with cuda_connector(table, max_tokens=16, settings=PATIENT) as connector:
        connector.trace(True)
        streams.capturing = True
        connector.wait(connector.request(batch))
        streams.capturing = False
        gc.collect()
        assert len(captured) > 3
        assert all(event() is not None for event in captured)
