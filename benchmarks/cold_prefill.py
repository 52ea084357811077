"""Prefill with rows on cold storage: how long a chunk may be whose rows are there before it asks.

    python -m benchmarks.cold_prefill [--device cuda]

Chunks of falling length, until a chunk's measured gather takes less than 80 % of the time that the
stand-in stage computes on it; then a prompt of such chunks with early requests off and on. The
files are dropped from the page cache before each run. And the first prompt of a process of its own,
cold too, off and on.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import harness, machine, overlap
from benchmarks.harness import Benchmark, MeasuredCase
from benchmarks.overlap import Overlap, Pictures, Run, open_table
from benchmarks.stand_in import OPTIONS, StageSize, write_model
from gramary.targets import Target

# A gather is hidden when it takes less than this part of what it hides behind.
HIDDEN_PART = 0.8
# What a chunk may wait all the same, as a part of its time.
IDLE_PART = 0.02
SHORTEST_CHUNK = 1
# Chunks of a prompt when lengths are compared, and when one is measured.
NUM_TRIED, NUM_MEASURED = 3, 24


@dataclasses.dataclass(frozen=True)
class ChunkTimes:
    """Medians over the chunks of a prompt, in microseconds.

    Attributes:
        gather_us: the service's time for a chunk's rows.
        compute_us: the stage's time for a chunk, waiting excluded.
    """

    gather_us: float
    compute_us: float

    @property
    def is_hidden(self) -> bool:
        """Whether a chunk's gather fits behind the chunk before."""
        return self.gather_us < HIDDEN_PART * self.compute_us


def times_of(run: Run, num_chunks: int) -> ChunkTimes:
    """Returns what a run's spans say of its chunks."""
    gathers: Counter[int] = Counter()
    compute_ns = 0
    for span in run.spans:
        if span.name in ("gather", "read_disk"):
            gathers[span.number] += span.end_ns - span.begin_ns
        elif span.name in ("dense layers", "PLE layer"):
            compute_ns += span.end_ns - span.begin_ns
    return ChunkTimes(statistics.median(gathers.values()) / 1e3, compute_ns / num_chunks / 1e3)


def find_longest(
    size: StageSize, open_stage: functools.partial[Overlap]
) -> tuple[StageSize, ChunkTimes]:
    """Returns the stage with the longest chunks, of halved lengths, whose gather is hidden.

    On a GPU most of a chunk's layers are one graph: a short chunk would be as long as its launches.

    Raises:
        AssertionError: there is none.
    """
    for tokens in itertools.takewhile(
        lambda tokens: tokens >= SHORTEST_CHUNK, (size.chunk_tokens >> i for i in itertools.count())
    ):
        tried = dataclasses.replace(
            size, chunk_tokens=tokens, num_chunks=NUM_TRIED, is_graphed=size.device == "cuda"
        )
        stage = open_stage(tried)
        stage.run(early=True)
        times = times_of(stage.run(early=True), NUM_TRIED)
        print(
            f"  {tokens} tokens: gather {times.gather_us:.0f} us, stage {times.compute_us:.0f} us"
        )
        if times.is_hidden:
            return dataclasses.replace(tried, num_chunks=NUM_MEASURED), times
    raise AssertionError("no chunk computes for as long as its rows take")


def idle_cases(size: StageSize, model: Path, repeats: int) -> Iterator[MeasuredCase]:
    """Yields idle time and total time of a prompt of the longest chunks whose gather is hidden."""
    with open_table(size, "disk", model, base=0) as table:
        open_stage = functools.partial(Overlap, table=table, cold=True)
        chosen, times = find_longest(size, open_stage)
        limit = Target(round(IDLE_PART * times.compute_us, 1), of="median")
        for case in overlap.measure(open_stage(chosen), repeats, Pictures(), limit):
            facts = {"gather_us": round(times.gather_us), "stage_us": round(times.compute_us)}
            yield dataclasses.replace(case, parameters={**case.parameters, **facts})


def read_first_prompt(size: StageSize, model: Path, early: bool) -> float:
    """Returns the time of a prompt that nobody read before, in milliseconds."""
    with open_table(size, "disk", model, base=0) as table:
        return Overlap(size, table, cold=True).run(early).total_ms


def first_prompt_case(size: StageSize, model: Path, repeats: int) -> MeasuredCase:
    """Returns the measured first prompt of processes of their own, off and on in turns."""
    samples: dict[str, list[float]] = {option: [] for option in OPTIONS.values()}
    for turn in range(repeats):
        for early in (False, True) if turn % 2 == 0 else (True, False):
            words = ["--first", json.dumps([dataclasses.asdict(size), str(model), early])]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.cold_prefill", *words],
                stdout=subprocess.PIPE, text=True, check=True, cwd=machine.ROOT,
            )  # fmt: skip
            samples[OPTIONS[early]].append(float(done.stdout) * 1e3)
    return MeasuredCase(
        name="the first prompt of a process",
        parameters=dataclasses.asdict(size),
        samples=samples,
        baseline=OPTIONS[False],
        check=lambda: 2 * repeats,
        checked="every process read its prompt to the end; rows and outputs are compared by the "
        "other cases",
        moved_bytes=size.chunk_tokens * size.num_chunks * 16 * 160,
        cache="cold",
        cache_note="files dropped from the page cache; kernels compiled by earlier processes",
        unit="us",
        timer_name="cpu",
    )


def make_benchmark(device: str) -> Benchmark:
    """Returns the benchmark for a device."""

    def build(smoke: bool) -> Iterator[MeasuredCase]:
        small = dataclasses.replace(overlap.SMOKE, device=device)
        size, base, repeats = (small, 500, 1) if smoke else (overlap.SIZES[device], 1_000_000, 3)
        with tempfile.TemporaryDirectory() as folder:
            model = write_model(Path(folder), base)
            yield from idle_cases(size, model, repeats)
            few = dataclasses.replace(size, num_chunks=min(size.num_chunks, 3))
            yield first_prompt_case(few, model, 1 if smoke else 2)

    return Benchmark(
        name="cold_prefill",
        build=build,
        sources=[*overlap.BENCHMARK.sources, "csrc/disk/*", "benchmarks/cold_prefill.py"],
        needs=device,
    )


BENCHMARK = make_benchmark("cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark, or the first prompt of this process, from a command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=tuple(overlap.SIZES), default="cpu")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    words = list(sys.argv[1:] if arguments is None else arguments)
    options, others = parser.parse_known_args(words)
    if options.first is None:
        harness.main(make_benchmark(options.device), others)
        return
    size, model, early = json.loads(options.first)
    print(read_first_prompt(StageSize(**size), Path(model), early))


if __name__ == "__main__":
    main()
