"""Prefill with rows on cold storage: how long a chunk may be whose rows are there before it asks.

    python -m benchmarks.cold_prefill

Chunks of falling length, until a chunk's measured gather takes less than 80 % of the time that the
stand-in stage computes on it; then a prompt of such chunks with early requests off and on. The
files are dropped from the page cache before each prompt. And the first prompt of a process of its
own, cold too, off and on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, machine
from benchmarks.harness import Benchmark, MeasuredCase
from benchmarks.offload_prefill import COLD, Prefill
from benchmarks.offload_tables import settings
from benchmarks.receipts.targets import Target
from benchmarks.stand_in import OPTIONS, REAL_SIZE, StageSize, in_turns, write_model
from gramary import Table

# A gather is hidden when it takes less than this part of what it hides behind.
HIDDEN_PART = 0.8
# What a chunk may wait all the same, as a part of the stage's time.
IDLE_PART = 0.02
# Chunks of a prompt when lengths are compared, and when one is measured.
NUM_TRIED, NUM_MEASURED = 4, 24
SMOKE = dataclasses.replace(REAL_SIZE, num_layers=2, chunk_tokens=64, num_chunks=3)


def find_longest(
    size: StageSize, table: Table, hidden_part: float = HIDDEN_PART
) -> tuple[Prefill, dict[str, Any]]:
    """Returns the prompt with the longest chunks, of halved lengths, whose gather is hidden.

    On a GPU most of a chunk's layers are one graph: a short chunk would be as long as its launches.

    Returns:
        The prompt of NUM_MEASURED chunks, and the times that were found, for the receipt.

    Raises:
        AssertionError: there is none.
    """
    tokens = size.chunk_tokens
    while tokens > 0:
        tried = dataclasses.replace(
            size, chunk_tokens=tokens, num_chunks=NUM_TRIED, is_graphed=size.device == "cuda"
        )
        prefill = Prefill(tried, table, is_cold=True)
        prefill.run(early=True)
        run = prefill.run(early=True)
        print(f"  {tokens} tokens: gather {run.gather_us:.0f} us, stage {run.stage_us:.0f} us")
        if run.gather_us < hidden_part * run.stage_us:
            found = dataclasses.replace(tried, num_chunks=NUM_MEASURED)
            times = {"gather_us": round(run.gather_us), "stage_us": round(run.stage_us)}
            return Prefill(found, table, is_cold=True), times
        tokens //= 2
    raise AssertionError("no chunk computes for as long as its rows take")


def idle_case(
    size: StageSize, table: Table, repeats: int, hidden_part: float = HIDDEN_PART
) -> MeasuredCase:
    """Returns the measured idle time of the longest chunks whose gather is hidden."""
    prefill, times = find_longest(size, table, hidden_part)
    limit = Target(round(IDLE_PART * times["stage_us"], 1), of="median")
    return prefill.case("idle a chunk whose gather is hidden", times, repeats, limit)


@contextlib.contextmanager
def open_on_disk(model: Path, device: str) -> Iterator[Table]:
    """Opens a model's table with all rows on disk."""
    with Table.open(model, placement="disk", device=device, settings=settings()) as table:
        yield table


def read_first_prompt(size: StageSize, model: Path, early: bool) -> float:
    """Returns the time of a prompt that nobody read before, in microseconds."""
    with open_on_disk(model, size.device) as table:
        prefill = Prefill(size, table, is_cold=True)
        begin = time.perf_counter()
        prefill.run(early)
        return (time.perf_counter() - begin) * 1e6


def first_prompt_case(size: StageSize, model: Path, repeats: int) -> MeasuredCase:
    """Returns the measured first prompt of processes of their own, off and on in turns."""
    samples: dict[str, list[float]] = {option: [] for option in OPTIONS.values()}
    for early in in_turns(repeats):
        given = json.dumps([dataclasses.asdict(size), str(model), early])
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.cold_prefill", "--first", given],
            stdout=subprocess.PIPE, text=True, check=True, cwd=machine.ROOT,
        )  # fmt: skip
        samples[OPTIONS[early]].append(round(float(done.stdout), 1))
    return MeasuredCase(
        name="the first prompt of a process",
        parameters=dataclasses.asdict(size),
        samples=samples,
        baseline=OPTIONS[False],
        check=lambda: 2 * repeats,
        checked="every process read its prompt to the end without a failure; rows and outputs are "
        "compared by the other case",
        moved_bytes=size.chunk_tokens * size.num_chunks * 16 * 160,
        cache="cold",
        cache_note=f"{COLD}; kernels compiled by earlier processes, loaded by this one",
        unit="us",
        timer_name="cpu",
    )


def build(smoke: bool) -> Iterator[MeasuredCase]:
    """Yields the idle time of the longest hidden chunks, and first prompts."""
    size, base, repeats = (SMOKE, 500, 1) if smoke else (REAL_SIZE, 1_000_000, 3)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder), base)
        with open_on_disk(model, size.device) as table:
            # A small stage hides nothing; all else of it is to be seen.
            yield idle_case(size, table, repeats, 1e3 if smoke else HIDDEN_PART)
        few = dataclasses.replace(size, num_chunks=min(size.num_chunks, 3))
        yield first_prompt_case(few, model, 1 if smoke else 2)


BENCHMARK = Benchmark(
    name="cold_prefill",
    build=build,
    sources=[
        "src/gramary/offload/*.py", "src/gramary/offload/cuda/*.py", "csrc/offload/*",
        "csrc/disk/*", "benchmarks/cold_prefill.py", "benchmarks/offload_*.py",
        "benchmarks/stand_in.py", "benchmarks/table_folder.py",
    ],
    needs="cuda",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark, or the first prompt of this process, from a command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    words = list(sys.argv[1:] if arguments is None else arguments)
    options, others = parser.parse_known_args(words)
    if options.first is None:
        harness.main(BENCHMARK, others)
        return
    size, model, early = json.loads(options.first)
    print(read_first_prompt(StageSize(**size), Path(model), early))


if __name__ == "__main__":
    main()
