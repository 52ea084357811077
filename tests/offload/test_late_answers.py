"""Kind 27: an answer of a worker process belongs to the question that it answers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import cast

import pytest
import torch
from offload_stage import expected_rows, freeze, make_batch, make_table

from gramary import Connector, Settings, Table
from gramary.offload.service import process
from gramary.offload.service.process import ProcessService

SETTINGS = Settings(request_timeout_s=20, num_threads=1)


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    with make_table() as opened:
        yield opened


@pytest.fixture
def connector(table: Table, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connector]:
    """A connector with a worker process, which is waited for shortly once it stands still."""
    with Connector(table, max_tokens=16, worker="process", settings=SETTINGS) as opened:
        monkeypatch.setattr(process, "ANSWER_TIMEOUT_S", 20.0)
        yield opened


def ask_while_it_stands(connector: Connector, *questions: str) -> None:
    """Asks a worker that does not answer in time; then it goes on, and answers late."""
    service = cast(ProcessService, connector.service)
    freeze(service.pid)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process, "ANSWER_TIMEOUT_S", 0.02)
            # What an earlier connection may wait by.
            service._joined.settimeout(0.02)
            for question in questions:
                if question == "spans":
                    assert service.take_spans() == []
                else:
                    service.trace(question == "on")
    finally:
        service._joined.settimeout(20)
        os.kill(service.pid, signal.SIGCONT)


def serve(connector: Connector, table: Table, seed: int) -> None:
    batch = make_batch(seed)
    rows = connector.wait(connector.request(batch))
    assert torch.equal(rows, expected_rows(table, batch))


def numbers(connector: Connector, name: str = "gather") -> list[int]:
    return [span.number for span in connector.take_spans() if span.name == name]


def test_kind_27_a_late_answer_to_trace_is_not_taken_for_spans(
    connector: Connector, table: Table
) -> None:
    ask_while_it_stands(connector, "on")
    serve(connector, table, 1)
    connector.trace(True)
    serve(connector, table, 2)
    assert numbers(connector)[-1] == 2
    connector.trace(False)
    serve(connector, table, 3)
    assert connector.take_spans() == []


def test_kind_27_a_late_answer_with_spans_is_not_taken_for_trace(
    connector: Connector, table: Table
) -> None:
    """Once `trace(False)` has returned nothing is kept any more, and late spans are not lost."""
    connector.trace(True)
    serve(connector, table, 1)
    ask_while_it_stands(connector, "spans", "spans")
    connector.trace(False)
    serve(connector, table, 2)
    # The worker had them under way; what it did behind the end of the trace is not among them.
    late = connector.service.take_spans()
    assert {(span.name, span.number) for span in late} == {("gather", 1), ("publish", 1)}
    assert connector.service.take_spans() == []


def test_kind_27_many_late_answers_leave_every_later_one_its_own(
    connector: Connector, table: Table
) -> None:
    ask_while_it_stands(connector, "on", "spans", "off", "spans", "on")
    for seed in range(1, 4):
        serve(connector, table, seed)
        began = time.monotonic()
        connector.trace(True)
        serve(connector, table, 10 + seed)
        assert numbers(connector)[-1] == 2 * seed
        assert time.monotonic() - began < 10
