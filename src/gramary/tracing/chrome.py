"""Trace files in the Chrome trace event format, which Perfetto (ui.perfetto.dev) opens.

Source: "Trace Event Format", the JSON object form with complete events ("ph": "X") and metadata
events ("ph": "M"); times are microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gramary.tracing.spans import Span


def write_trace(path: str | os.PathLike[str], groups: Mapping[str, Sequence[Span]]) -> None:
    """Writes spans as a trace file; an existing file is replaced whole.

    Args:
        path: the file, usually named *.json.
        groups: spans by the heading that they are shown under; each track is a line below it.

    Raises:
        OSError: the file cannot be written.
    """
    events = list(trace_events(groups))
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def trace_events(groups: Mapping[str, Sequence[Span]]) -> Iterator[dict[str, Any]]:
    """Yields the events: a process for each group, a thread for each track."""
    for process, (heading, spans) in enumerate(groups.items(), start=1):
        yield _metadata("process_name", process, 0, {"name": heading})
        yield _metadata("process_sort_index", process, 0, {"sort_index": process})
        tracks = list(dict.fromkeys(span.track for span in spans))
        for thread, track in enumerate(tracks, start=1):
            yield _metadata("thread_name", process, thread, {"name": track})
            yield _metadata("thread_sort_index", process, thread, {"sort_index": thread})
        for span in spans:
            yield {
                "name": span.name,
                "cat": "gramary",
                "ph": "X",
                "pid": process,
                "tid": tracks.index(span.track) + 1,
                "ts": span.begin_ns / 1e3,
                "dur": (span.end_ns - span.begin_ns) / 1e3,
                "args": {"lane": span.lane, "request": span.number},
            }


def _metadata(name: str, process: int, thread: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": values}


__all__ = ["trace_events", "write_trace"]
