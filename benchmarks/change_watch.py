"""What it costs to know that no file was written to: 16 warm rows of one file, and of sixteen.

    python -m benchmarks.change_watch --earlier FOLDER [--smoke]

FOLDER holds a package `gramary` built of this tree whose `DiskReader::find_changed` asks for no
change time and finds nothing. Without it this tree's package is compared with itself, which shows
the noise. Each package runs in a process of its own; their samples take turns, and every pair of
processes is started afresh.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gramary
from benchmarks import harness
from benchmarks.change_side import NUM_ROWS, ROW_BYTES
from benchmarks.disk_files import fill_cache, write_random_file
from benchmarks.harness import Benchmark, MeasuredCase
from benchmarks.package_process import PackageProcess

NUM_FILES = (1, 16)
# What knowing may cost: of a read of one file, and for each further file.
SHARE_OF_ONE = 0.03
FURTHER_US = 0.4
KNOWS, EARLIER = "looks at change times", "does not look"

Samples = dict[str, list[float]]


def take_samples(
    packages: dict[str, Path], folder: Path, num_pairs: int, num_samples: int
) -> tuple[dict[int, Samples], dict[str, dict[str, Any]]]:
    """Returns the samples by the number of files, and the facts of each package's core."""
    samples: dict[int, Samples] = {count: {name: [] for name in packages} for count in NUM_FILES}
    facts: dict[str, dict[str, Any]] = {}
    for _ in range(num_pairs):
        with contextlib.ExitStack() as stack:
            sides = {}
            for name, package in packages.items():
                sides[name] = PackageProcess(package, "benchmarks.change_side", str(folder))
                stack.callback(sides[name].close)
            facts = {name: side.describe() for name, side in sides.items()}
            for count in NUM_FILES:
                found = {side.ask("digest", count) for side in sides.values()}
                assert len(found) == 1, f"rows of {count} files differ"
            for turn in range(num_samples):
                order = list(sides) if turn % 2 else list(reversed(sides))
                for count in NUM_FILES:
                    for name in order:
                        samples[count][name].append(round(sides[name].ask("time_warm", count), 4))
    return samples, facts


def build(smoke: bool, earlier: str | None = None) -> Iterator[MeasuredCase]:
    """Yields the case of one file and that of sixteen, measured."""
    this = Path(gramary.__file__).parent.parent
    packages = {EARLIER: Path(earlier) if earlier else this, KNOWS: this}
    with tempfile.TemporaryDirectory(prefix="gramary-bench-") as scratch:
        for index in range(max(NUM_FILES)):
            path = Path(scratch) / f"{index:02}.bin"
            write_random_file(path, 4 << 20)
            fill_cache(str(path))
        pairs, count = (1, 1) if smoke else (4, 60)
        samples, facts = take_samples(packages, Path(scratch), pairs, count)
    one = statistics.median(samples[1][EARLIER])
    for num_files, taken in samples.items():
        earlier_us = statistics.median(taken[EARLIER])
        allowed_us = earlier_us + SHARE_OF_ONE * one + FURTHER_US * (num_files - 1)
        yield MeasuredCase(
            name=f"{NUM_ROWS} warm rows of {num_files} file(s)",
            parameters={
                "rows": NUM_ROWS,
                "files": num_files,
                "pairs_of_processes": pairs,
                "earlier_core_sha256": facts[EARLIER]["core_sha256"],
                "this_core_sha256": facts[KNOWS]["core_sha256"],
            },
            samples=taken,
            baseline=EARLIER,
            check=lambda: 2 * len(packages) * NUM_ROWS * ROW_BYTES,
            checked="both packages give the same rows, in every process",
            moved_bytes=NUM_ROWS * ROW_BYTES,
            cache="warm",
            cache_note="every file read from start to end before the samples",
            targets={KNOWS: round(allowed_us / earlier_us, 4)},
            unit="us",
            timer_name="cpu",
        )


BENCHMARK = Benchmark(
    name="change_watch",
    build=build,
    sources=("benchmarks/change_watch.py", "benchmarks/change_side.py", "csrc/disk/file_watch.*",
             "csrc/disk/disk_reader.cpp"),
)  # fmt: skip


def main() -> None:
    """Runs the benchmark, with an option for the earlier package."""
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--earlier", help="folder that holds the package that does not look")
    options, rest = parser.parse_known_args()
    build_it = functools.partial(build, **vars(options))
    harness.main(dataclasses.replace(BENCHMARK, build=build_it), rest, sys.argv[1:])


if __name__ == "__main__":
    main()
