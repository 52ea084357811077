"""The reader of an earlier build against this tree's: cold and warm, beside bare reads.

    python -m benchmarks.uring_core --earlier FOLDER [--table-gib 4] [--folder DIR] [--smoke]

FOLDER holds a built package `gramary`: another tree's src/, an unpacked wheel, an environment's
site-packages. Without it this tree's package is compared with itself, which shows the noise. Each
package runs in processes of its own, one of each at a time, whose samples take turns; every pair of
processes is started afresh, so that no chance of where memory lies decides.

Both are divided by the bare reads of the earlier package: what differs is the reader alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gramary
from benchmarks import harness
from benchmarks.disk_files import drop_cache, fill_cache, write_random_file
from benchmarks.harness import Benchmark, MeasuredCase
from benchmarks.package_process import PackageProcess

NUM_COLD_ROWS = 131_072
NUM_WARM_ROWS = (16, 256)
# What the ratio may exceed the earlier one's by.
MARGIN = 0.03
# Before each cold sample: storage that is lent lets bursts run faster than what follows them.
PAUSE_S = 0.3
THIS, EARLIER = "this core", "earlier core"
ROW_BYTES = 160


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        num_pairs: pairs of processes.
        num_cold: cold samples of each candidate in a pair.
        num_warm: warm ones.
        num_cold_rows: rows of the cold batch.
        pause_s: seconds before a cold sample.
    """

    num_pairs: int = 2
    num_cold: int = 5
    num_warm: int = 60
    num_cold_rows: int = NUM_COLD_ROWS
    pause_s: float = PAUSE_S


SMOKE = Plan(num_pairs=1, num_cold=1, num_warm=1, num_cold_rows=8192, pause_s=0.0)


Samples = dict[str, list[float]]


class Comparison:
    """Samples of both packages and of their bare reads, pair after pair.

    Args:
        packages: the folder of each, by name.
        table: the table's file.
        plan: how much is measured.
    """

    def __init__(self, packages: dict[str, Path], table: Path, plan: Plan) -> None:
        self._packages = packages
        self._table = str(table)
        self.plan = plan
        self._forwards = True
        self.cold = _no_samples("bare ring")
        self.warm = {num_rows: _no_samples("one pread a row") for num_rows in NUM_WARM_ROWS}
        self.facts: dict[str, dict[str, Any]] = {}

    def take(self) -> None:
        """Takes all samples."""
        for _ in range(self.plan.num_pairs):
            with contextlib.ExitStack() as stack:
                sides = {}
                for name, package in self._packages.items():
                    sides[name] = PackageProcess(package, "benchmarks.core_side", self._table)
                    stack.callback(sides[name].close)
                # Both start side by side.
                self.facts = {name: side.describe() for name, side in sides.items()}
                self._check(sides, self.plan.num_cold_rows)
                self._take_cold(sides)
                fill_cache(self._table)
                self._take_warm(sides)

    def _check(self, sides: dict[str, PackageProcess], num_rows: int) -> None:
        found = {}
        for name, side in sides.items():
            for is_bare in (False, True):
                if num_rows == self.plan.num_cold_rows:
                    # The reader's rows come cold; one pread a row would take minutes.
                    (fill_cache if is_bare else drop_cache)(self._table)
                found[name, is_bare] = side.ask("digest", num_rows, is_bare)
        assert len(set(found.values())) == 1, f"{num_rows} rows differ: {found}"

    def _take_cold(self, sides: dict[str, PackageProcess]) -> None:
        for _ in range(self.plan.num_cold):
            for name, is_bare, samples in self._in_turns(self.cold):
                drop_cache(self._table)
                time.sleep(self.plan.pause_s)
                taken = sides[name].ask("time_cold", self.plan.num_cold_rows, is_bare)
                samples.append(round(taken, 1))

    def _take_warm(self, sides: dict[str, PackageProcess]) -> None:
        for num_rows in NUM_WARM_ROWS:
            self._check(sides, num_rows)
            for _ in range(self.plan.num_warm):
                for name, is_bare, samples in self._in_turns(self.warm[num_rows]):
                    samples.append(round(sides[name].ask("time_warm", num_rows, is_bare), 4))

    def _in_turns(self, all_samples: Samples) -> Iterator[tuple[str, bool, list[float]]]:
        """Yields each candidate, forwards and backwards in turn: a drift favours none."""
        candidates = list(zip(itertools.product((False, True), (EARLIER, THIS)), all_samples,
                              strict=True))  # fmt: skip
        for (is_bare, name), key in candidates if self._forwards else reversed(candidates):
            yield name, is_bare, all_samples[key]
        self._forwards = not self._forwards


def _no_samples(bare: str) -> Samples:
    return {EARLIER: [], THIS: [], f"{bare}, {EARLIER}": [], f"{bare}, {THIS}": []}


def build(
    smoke: bool, earlier: str | None = None, table_gib: float = 4.0, folder: str | None = None
) -> Iterator[MeasuredCase]:
    """Yields the cold case and the warm ones, measured."""
    this = Path(gramary.__file__).parent.parent
    packages = {EARLIER: Path(earlier) if earlier else this, THIS: this}
    with tempfile.TemporaryDirectory(prefix="gramary-bench-", dir=folder) as scratch:
        table = Path(scratch) / "table.bin"
        write_random_file(table, 64 << 20 if smoke else int(table_gib * 2**30) // 4096 * 4096)
        comparison = Comparison(packages, table, SMOKE if smoke else Plan())
        comparison.take()
        yield _case(comparison, comparison.cold, "cold", comparison.plan.num_cold_rows)
        for num_rows, samples in comparison.warm.items():
            yield _case(comparison, samples, "warm", num_rows)


def _case(comparison: Comparison, samples: Samples, cache: str, num_rows: int) -> MeasuredCase:
    baseline = list(samples)[2]
    earlier_ratio = statistics.median(samples[EARLIER]) / statistics.median(samples[baseline])
    facts = comparison.facts
    notes = {
        "cold": "the file's pages dropped before every sample; O_DIRECT",
        "warm": "the whole file read from start to end before the samples of each pair",
    }
    return MeasuredCase(
        name=f"checkpoint, {cache}, {num_rows} random rows",
        parameters={
            "rows": num_rows,
            "pairs_of_processes": comparison.plan.num_pairs,
            "threads": facts[THIS]["threads"],
            "depth": facts[THIS]["threads"] * facts[THIS]["depth"],
            "earlier_core_sha256": facts[EARLIER]["core_sha256"],
            "this_core_sha256": facts[THIS]["core_sha256"],
        },
        samples=samples,
        baseline=baseline,
        check=lambda: 2 * len(comparison.facts) * num_rows * ROW_BYTES,
        checked="rows of both readers, in every process, are those that one pread each gives",
        moved_bytes=num_rows * ROW_BYTES,
        cache=cache,
        cache_note=notes[cache],
        targets={THIS: round(earlier_ratio + MARGIN, 4)},
        unit="us",
        timer_name="cpu",
    )


BENCHMARK = Benchmark(
    name="uring_core",
    build=build,
    sources=("benchmarks/uring_core.py", "benchmarks/core_side.py", "benchmarks/disk_files.py",
             "benchmarks/package_process.py", "csrc/disk/*", "src/gramary/native/disk.py"),
)  # fmt: skip


def main() -> None:
    """Runs the benchmark, with options for the earlier package and for the table."""
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--earlier", help="folder that holds the other package")
    parser.add_argument("--table-gib", type=float, help="size of the table")
    parser.add_argument("--folder", help="where the table is written")
    options, rest = parser.parse_known_args()
    build_it = functools.partial(build, **vars(options))
    harness.main(dataclasses.replace(BENCHMARK, build=build_it), rest, sys.argv[1:])


if __name__ == "__main__":
    main()
