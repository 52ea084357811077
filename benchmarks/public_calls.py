"""Public calls of an earlier build against this tree's: what Python costs between user and core.

    python -m benchmarks.public_calls --earlier FOLDER [--smoke]

FOLDER holds a built package `gramary`, as for `benchmarks.uring_core`; without it this tree's
package is compared with itself. Batches are tiny, so the way to the work is most of the time. Three
processes take turns, one of them this tree's and two the earlier package's: how far those two
differ is the noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import gramary
from benchmarks import harness
from benchmarks.harness import Benchmark, MeasuredCase
from benchmarks.package_process import PackageProcess

THIS, EARLIER, AGAIN = "this package", "earlier package", "earlier package again"
NUM_SAMPLES = 45
# What the ratio may exceed 1 by.
MARGIN = 0.02


def build(smoke: bool, earlier: str | None = None) -> Iterator[MeasuredCase]:
    """Yields a case for each public call, measured."""
    this = Path(gramary.__file__).parent.parent
    before = Path(earlier) if earlier else this
    with ExitStack() as stack:
        sides = {}
        for name, package in {EARLIER: before, THIS: this, AGAIN: before}.items():
            sides[name] = PackageProcess(package, "benchmarks.calls_side")
            stack.callback(sides[name].close)
        facts = [side.describe() for side in sides.values()]
        calls: list[str] = facts[0]["calls"]
        samples = take_samples(sides, calls, 1 if smoke else NUM_SAMPLES)
        for call in calls:
            digests = {side.ask("digest", call) for side in sides.values()}
            assert len(digests) == 1, f"{call}: rows differ"
            yield _case(call, samples[call])


def take_samples(
    sides: dict[str, PackageProcess], calls: Sequence[str], num_samples: int
) -> dict[str, dict[str, list[float]]]:
    """Returns samples of each call by each side; who begins changes from round to round."""
    samples: dict[str, dict[str, list[float]]] = {
        call: {name: [] for name in sides} for call in calls
    }
    orders = itertools.cycle(itertools.permutations(sides))
    for order in itertools.islice(orders, num_samples):
        for call in calls:
            for name in order:
                samples[call][name].append(round(sides[name].ask("time", call), 4))
    return samples


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns an interval that holds the median of what was sampled, at 95 %.

    Source: order statistics, the normal approximation of the binomial distribution with p = 1/2.
    """
    ordered = sorted(values)
    middle, reach = len(ordered) / 2, 1.96 * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(middle - reach))
    high = min(len(ordered) - 1, math.ceil(middle + reach))
    return round(ordered[low], 4), round(ordered[high], 4)


def _case(call: str, samples: dict[str, list[float]]) -> MeasuredCase:
    parameters: dict[str, object] = {"call": call, "processes": len(samples)}
    for name, key in ((THIS, "this"), (AGAIN, "again")):
        pairs = [mine / his for mine, his in zip(samples[name], samples[EARLIER], strict=True)]
        parameters[f"paired_ratio_of_{key}"] = round(statistics.median(pairs), 4)
        parameters[f"interval_of_{key}"] = list(median_interval(pairs))
    return MeasuredCase(
        name=call,
        parameters=parameters,
        samples=samples,
        baseline=EARLIER,
        check=lambda: len(samples),
        checked="all processes give the same rows, bit for bit",
        moved_bytes=0,
        cache="warm",
        cache_note="one tiny batch again and again",
        targets={THIS: 1 + MARGIN},
        unit="us",
        timer_name="cpu",
    )


BENCHMARK = Benchmark(
    name="public_calls",
    build=build,
    sources=("benchmarks/public_calls.py", "benchmarks/calls_side.py", "tools/count_calls.py",
             "src/gramary/table.py", "src/gramary/flat_batch.py", "src/gramary/batch.py",
             "src/gramary/reading/*.py", "src/gramary/native/rows.py",
             "src/gramary/offload/connector.py", "src/gramary/offload/lanes/*.py"),
)  # fmt: skip


def main() -> None:
    """Runs the benchmark, with an option for the earlier package."""
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--earlier", help="folder that holds the other package")
    options, rest = parser.parse_known_args()
    build_it = functools.partial(build, **vars(options))
    harness.main(dataclasses.replace(BENCHMARK, build=build_it), rest, sys.argv[1:])


if __name__ == "__main__":
    main()
