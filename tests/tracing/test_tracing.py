"""Spans: kept only when asked for, written as a trace file, drawn as a picture."""

import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from gramary.errors import DependencyError
from gramary.tracing import SPAN_NAMES, Span, SpanLog, write_trace
from gramary.tracing import spans as spans_module
from gramary.tracing.timeline import COLOURS, draw_timeline


def test_the_names_are_fixed() -> None:
    assert SPAN_NAMES == (
        "wait_previous_request", "write_inputs", "wait_tokens", "gather", "read_disk", "publish",
        "wait_rows", "copy_rows", "release",
    )  # fmt: skip
    assert set(COLOURS) == set(SPAN_NAMES)


def test_spans_are_kept_while_on_and_taken_once() -> None:
    log = SpanLog("engine")
    with log.span("wait_rows", "host", 1):
        pass
    log.add("release", 1, 2)
    assert log.take() == []
    log.switch(True)
    before = time.monotonic_ns()
    with log.span("wait_rows", "host", 2), log.span("copy_rows", "host", 2):
        pass
    with pytest.raises(KeyError), log.span("release"):
        raise KeyError
    copied, waited, released = log.take()
    assert (copied.name, waited.name, released.name) == ("copy_rows", "wait_rows", "release")
    assert (waited.track, waited.lane, waited.number) == ("engine", "host", 2)
    assert before <= waited.begin_ns <= copied.begin_ns <= copied.end_ns <= waited.end_ns
    assert log.take() == []
    log.switch(False)
    with log.span("wait_rows"):
        pass
    assert log.take() == []


def test_a_log_that_nobody_takes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_module, "MAX_SPANS", 3)
    log = SpanLog("engine")
    log.switch(True)
    threads = [threading.Thread(target=lambda: log.add("gather", 1, 2)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.take()) == 3
    assert log.num_dropped == 2


def test_off_a_span_costs_next_to_nothing() -> None:
    """The same object each time, so that no memory is taken; a thousand in far less than 1 ms."""
    log = SpanLog("engine")
    assert log.span("gather") is log.span("release", "host", 3)


def test_spans_are_nvtx_ranges_where_there_is_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushed and popped in turn, also where a block raises; not a call while off."""
    calls: list[str] = []
    profiler = SimpleNamespace(range_push=calls.append, range_pop=lambda: calls.append("pop"))
    monkeypatch.setattr("gramary.tracing.nvtx._nvtx", profiler)
    monkeypatch.setattr("gramary.tracing.spans.has_nvtx", lambda: True)
    log = SpanLog("engine")
    with log.span("gather"):
        pass
    assert calls == []
    log.switch(True)
    with pytest.raises(KeyError), log.span("wait_rows"), log.span("copy_rows"):
        raise KeyError
    assert calls == ["wait_rows", "copy_rows", "pop", "pop"]
    assert [span.name for span in log.take()] == ["copy_rows", "wait_rows"]


SPANS = [
    Span("forward", "compute", 1_000_000, 9_000_000),
    Span("gather", "service, host lane", 2_000_000, 4_500_001, "host", 2),
    Span("wait_rows", "engine", 5_000_000, 5_000_000, "host", 2),
]


def test_a_trace_file_holds_every_span(tmp_path: Path) -> None:
    """As Perfetto reads it: named processes and threads, complete events in microseconds."""
    path = tmp_path / "trace.json"
    path.write_text("an older one, longer than nothing")
    write_trace(path, {"early requests off": SPANS[:1], "early requests on": SPANS})
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(named.values()) == ["early requests off", "early requests on"]
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == 4
    gather = next(event for event in complete if event["name"] == "gather")
    assert (gather["ts"], gather["dur"]) == (2000.0, 2500.001)
    assert gather["args"] == {"lane": "host", "request": 2}
    assert threads[gather["pid"], gather["tid"]] == "service, host lane"
    assert {(e["pid"], e["tid"]) for e in complete} <= set(threads)
    for event in events:
        assert set(event) <= {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}


@pytest.mark.needs("matplotlib")
def test_a_picture_shows_every_run_and_name(tmp_path: Path) -> None:
    path = tmp_path / "timeline.svg"
    groups = {"early requests off": SPANS[:1], "early requests on": SPANS, "none": []}
    draw_timeline(path, groups, title="A run")
    first = path.read_bytes()
    ElementTree.fromstring(first)
    for text in ("A run", *groups, "gather", "wait_rows", "forward", "service, host lane"):
        assert f">{text}<".encode() in first
    draw_timeline(path, groups, title="A run")
    assert path.read_bytes() == first


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DependencyError, match=r"gramary\[plot\]"):
        draw_timeline(tmp_path / "x.svg", {}, title="")
