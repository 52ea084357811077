"""Prefill in chunks with early requests off and on: idle time, trace file, timeline.

    python -m benchmarks.overlap --placement disk --plot overlap.svg --trace overlap.json

A stand-in stage (dense layers around the real PLE layer) runs a prompt of random tokens chunk by
chunk, each option in turn. Off, a chunk's rows are requested when the forward before it is done;
on, while it computes. Idle is what the stage waits for rows, copying excluded, chunks 2..N: on a
GPU, time on the compute stream between events.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness
from benchmarks.disk_files import drop_cache
from benchmarks.harness import Benchmark, MeasuredCase
from benchmarks.receipts.targets import Target
from benchmarks.stand_in import (
    OPTIONS,
    REAL_SIZE,
    WARM_LIMIT,
    StageSize,
    StandIn,
    chunks_of_prompt,
    files_of,
    in_turns,
    require_same_outputs,
    tickets_of,
    write_model,
)
from gramary import Connector, Table
from gramary.settings import Settings
from gramary.tracing import Span, SpanLog, write_trace
from gramary.tracing.timeline import draw_timeline

SIZES = {
    "cpu": StageSize("cpu", hidden_size=128, num_layers=4, chunk_tokens=2048, num_chunks=6),
    "cuda": REAL_SIZE,
}
SMOKE = StageSize("cpu", hidden_size=32, num_layers=2, chunk_tokens=64, num_chunks=3)


@dataclasses.dataclass(frozen=True)
class Run:
    """One prompt, read with one option.

    Attributes:
        outputs: the residual streams behind every chunk, on the CPU.
        idle_us: how long each chunk waited for its rows.
        total_ms: wall time of the whole prompt.
        spans: everything that was done, on all tracks.
        lanes: which lane the requests took and why.
    """

    outputs: list[torch.Tensor]
    idle_us: list[float]
    total_ms: float
    spans: list[Span]
    lanes: dict[str, int]


class Overlap:
    """The stage, its table, and the runs through both.

    Args:
        size: the stage's.
        table: where rows come from.
        cold: drop the table's files from the page cache before each run.
    """

    def __init__(self, size: StageSize, table: Table, *, cold: bool = False) -> None:
        self.size, self.table, self.cold = size, table, cold
        self.stage = StandIn(size, table)
        self.chunks = chunks_of_prompt(size, table)

    def run(self, early: bool) -> Run:
        """Reads the prompt with early requests off or on."""
        if self.cold:
            drop_cache(*files_of(self.table))
        settings = Settings.from_env(force_doorbell=True)
        connector = Connector(
            self.table,
            max_tokens=self.size.chunk_tokens,
            prefill_early_request=early,
            settings=settings,
        )
        with connector, self._compute_spans() as compute:
            connector.trace(True)
            begin = time.perf_counter()
            outputs = self._read_prompt(connector, early, compute)
            if self.size.device == "cuda":
                torch.cuda.synchronize()
            total_ms = (time.perf_counter() - begin) * 1e3
            connector.check()
            spans = [*compute.take(), *connector.take_spans()]
            lanes = connector.stats()["lanes"]
        on_host = [output.cpu() for output in outputs]
        return Run(on_host, idle_of_chunks(spans), total_ms, spans, lanes)

    def _read_prompt(self, connector: Connector, early: bool, compute: Any) -> list[torch.Tensor]:
        state, outputs = self.stage.new_state(), []
        tickets = tickets_of(connector, self.chunks, early)
        for ticket, chunk in zip(tickets, self.chunks, strict=True):

            def take(ticket: Any = ticket) -> torch.Tensor:
                return connector.wait(ticket, dtype=self.size.dtype)

            outputs.append(self.stage.forward(chunk, state, take, compute))
        return outputs

    @contextlib.contextmanager
    def _compute_spans(self) -> Iterator[Any]:
        log: Any = SpanLog("compute")
        if self.size.device == "cuda":
            from gramary.offload.cuda.device_spans import DeviceSpans
            from gramary.offload.cuda.streams import CudaStreams

            log = DeviceSpans(CudaStreams(self.table.device), "compute")
        log.switch(True)
        yield log
        log.switch(False)


def idle_of_chunks(spans: Sequence[Span]) -> list[float]:
    """Returns how long each chunk waited, in microseconds: all waits before its PLE layer ran."""
    ends = sorted(span.begin_ns for span in spans if span.name == "PLE layer")
    idle_us = [0.0] * len(ends)
    for span in spans:
        if span.name == "wait_rows":
            idle_us[bisect.bisect(ends, span.begin_ns)] += (span.end_ns - span.begin_ns) / 1e3
    return idle_us


def measure(
    overlap: Overlap, repeats: int, pictures: Pictures, limit: Target | None = None
) -> Iterator[MeasuredCase]:
    """Runs both options in alternating order and yields idle time and total time.

    Args:
        overlap: what runs.
        repeats: runs of each option.
        pictures: where the last runs are drawn.
        limit: what is promised of the idle time of a chunk whose rows were requested early.
    """
    runs: dict[bool, list[Run]] = {False: [], True: []}
    # The first runs touch memory and threads for the first time: they are checked, not counted.
    compared = require_same_outputs(overlap.run(False).outputs, overlap.run(True).outputs)
    for early in in_turns(repeats):
        runs[early].append(overlap.run(early))
    for off, on in zip(*runs.values(), strict=True):
        compared += require_same_outputs(off.outputs, on.outputs)
    pictures.write({OPTIONS[early]: of_option[-1].spans for early, of_option in runs.items()})
    size = overlap.size
    shared: dict[str, Any] = {
        "baseline": OPTIONS[False],
        "check": lambda: compared,
        "checked": "the residual streams behind every chunk are the same bits, off and on",
        "moved_bytes": size.chunk_tokens * 16 * 160,
        "cache": "cold" if overlap.cold else "warm",
        "cache_note": "random tokens, the same in every run; the files dropped from the page cache "
        "before each run"
        if overlap.cold
        else "random tokens, the same in every run",
        "unit": "us",
        "timer_name": "cuda_events" if size.device == "cuda" else "cpu",
    }
    parameters = {
        **{field.name: getattr(size, field.name) for field in dataclasses.fields(size)},
        "tiers": ",".join(extent.tier for extent in overlap.table.placement.filled),
        "lanes_on": str(runs[True][-1].lanes), "lanes_off": str(runs[False][-1].lanes),
    }  # fmt: skip
    idle = {OPTIONS[e]: [us for run in of for us in run.idle_us[1:]] for e, of in runs.items()}
    total = {OPTIONS[e]: [run.total_ms * 1e3 for run in of] for e, of in runs.items()}
    targets = {} if limit is None else {OPTIONS[True]: limit}
    yield MeasuredCase(
        name="idle a chunk", parameters=parameters, samples=idle, targets=targets, **shared
    )
    shared["timer_name"] = "cpu"
    yield MeasuredCase(name="the whole prompt", parameters=parameters, samples=total, **shared)


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Where the last runs are drawn, if anywhere."""

    plot: Path | None = None
    trace: Path | None = None

    def write(self, groups: dict[str, list[Span]]) -> None:
        """Writes the trace file and the timeline of the runs, as asked."""
        if self.trace is not None:
            write_trace(self.trace, groups)
            print(f"trace: {self.trace} (open it in ui.perfetto.dev)")
        if self.plot is not None:
            draw_timeline(self.plot, groups, title="Rows under way while chunks compute")
            print(f"timeline: {self.plot}")


@contextlib.contextmanager
def open_table(size: StageSize, placement: str, model: Path | None, base: int) -> Iterator[Table]:
    """Opens the first table of a model, or one of random rows that is written first."""
    with contextlib.ExitStack() as opened:
        if model is None:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            model = write_model(folder, base)
        table = Table.open(
            model,
            placement=placement,
            device=size.device,
            table_index=0,
            settings=Settings.from_env(),
        )
        yield opened.enter_context(table)


def make_benchmark(options: argparse.Namespace | None = None) -> Benchmark:
    """Returns the benchmark with the options of a command line."""
    options = options or parser().parse_args([])

    def build(smoke: bool) -> Iterator[MeasuredCase]:
        small = dataclasses.replace(SMOKE, device=options.device)
        size = small if smoke else SIZES[options.device]
        asked = {
            "chunk_tokens": options.chunk_tokens, "num_chunks": options.chunks,
            "num_layers": options.layers,
        }  # fmt: skip
        given = {name: value for name, value in asked.items() if value is not None}
        size = dataclasses.replace(size, **given)
        base = 500 if smoke else 100_000
        repeats = 1 if smoke else options.repeats
        with open_table(size, options.placement, options.model, base) as table:
            overlap = Overlap(size, table, cold=options.cold)
            limit = WARM_LIMIT if options.device == "cuda" and not options.cold else None
            yield from measure(overlap, repeats, Pictures(options.plot, options.trace), limit)

    return Benchmark(
        name="overlap",
        build=build,
        sources=[
            "src/gramary/offload/*.py", "src/gramary/offload/cuda/*.py", "src/gramary/tracing/*.py",
            "csrc/offload/*", "benchmarks/overlap.py", "benchmarks/stand_in.py",
            "benchmarks/table_folder.py",
        ],
        needs=options.device,
    )  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Returns the options that are this benchmark's own."""
    made = argparse.ArgumentParser(prog="benchmarks.overlap", add_help=False)
    made.add_argument("--device", choices=tuple(SIZES), default="cpu")
    made.add_argument("--placement", default="disk")
    made.add_argument("--model", type=Path, help="folder of a model with a PLE table")
    made.add_argument("--chunks", type=harness.positive)
    made.add_argument("--chunk-tokens", type=harness.positive)
    made.add_argument("--layers", type=harness.positive)
    made.add_argument("--repeats", type=harness.positive, default=3)
    made.add_argument("--cold", action="store_true", help="drop the page cache before each run")
    made.add_argument("--trace", type=harness.new_file, help="trace file for Perfetto")
    made.add_argument("--plot", type=Path, help="picture of both timelines")
    return made


BENCHMARK = make_benchmark()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark from its command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options, others = parser().parse_known_args(words)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    harness.main(make_benchmark(options), others, words)


if __name__ == "__main__":
    main()
