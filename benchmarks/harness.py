"""From candidates to a receipt: check first, then time all candidates in alternation.

A benchmark module defines `BENCHMARK = Benchmark(...)` and ends with

    if __name__ == "__main__":
        main(BENCHMARK)

`build(smoke)` yields its cases one after another, so that only one case's data is alive at a time;
with `smoke` it yields small ones that take seconds. `python -m benchmarks.<module> --help` shows
the options; `python -m benchmarks.run` runs every module that this machine can.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.receipts import schema as receipts
from benchmarks.receipts.targets import Target, describe_target
from benchmarks.timers import CpuTimer, Timer, Work
from gramary.errors import GramaryError

# Exit code of a benchmark that was not run, for what it was given.
REFUSED = 2


@dataclasses.dataclass(kw_only=True)
class Comparison:
    """One piece of work, done by several candidates: what a receipt says beside their samples.

    Attributes:
        name: what the case is, e.g. "fp8 8192 tokens".
        parameters: sizes and seeds, flat.
        baseline: the candidate that the others are divided by.
        check: runs before any timing; raises when the candidates' results differ, and returns
            how many values it compared.
        checked: what the check shows, in words.
        moved_bytes: bytes that the work must read and write at least.
        floor: least time for those bytes in microseconds, or None where no rate is known.
        floor_basis: what the floor rests on.
        cache: "cold" or "warm", with cache_note saying what that means here.
        targets: what is promised for a candidate, where something is: the largest ratio as a
            number, other limits as a `Target`.
    """

    name: str
    parameters: Mapping[str, Any]
    baseline: str
    check: Callable[[], int]
    checked: str
    moved_bytes: int
    cache_note: str
    cache: str = "warm"
    floor: float | None = None
    floor_basis: str = "not known"
    targets: Mapping[str, float | Target] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True)
class Case(Comparison):
    """A case whose candidates are timed here.

    Attributes:
        candidates: what is timed, by name; buffers are made outside.
        before: runs before every sample, outside of its time (drops a cache, resets a state).
        timer: how a sample is taken.
        num_samples: samples of each candidate.
    """

    candidates: Mapping[str, Work]
    before: Callable[[], None] | None = None
    timer: Timer = dataclasses.field(default_factory=CpuTimer)
    num_samples: int = 15


@dataclasses.dataclass(kw_only=True)
class MeasuredCase(Comparison):
    """A case whose samples its own code took, such as peak memory in child processes.

    Attributes:
        samples: each candidate's samples.
        unit: of the samples, "bytes" or "us".
        timer_name: how they were taken.
    """

    samples: Mapping[str, Sequence[float]]
    cache: str = "cold"
    unit: str = "bytes"
    timer_name: str = "peak_memory"


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A named set of cases.

    Attributes:
        name: the module's name, the receipt's name and its file's stem.
        build: yields the cases; called with whether small ones will do.
        sources: glob patterns, from the repository's root, of the code that is measured.
        needs: "cpu" or "cuda".
    """

    name: str
    build: Callable[[bool], Iterator[Case | MeasuredCase]]
    sources: Sequence[str]
    needs: str = "cpu"

    def can_run(self) -> bool:
        """Returns whether this machine has what the benchmark needs."""
        import torch

        return self.needs == "cpu" or torch.cuda.is_available()


def measure(case: Case | MeasuredCase) -> dict[str, Any]:
    """Checks and times one case; returns it as a receipt holds it."""
    compared = case.check()
    if isinstance(case, MeasuredCase):
        samples, unit, timer = case.samples, case.unit, case.timer_name
    else:
        samples, unit, timer = _take_samples(case), "us", case.timer.name
    return {
        "name": case.name,
        "parameters": dict(case.parameters),
        "unit": unit,
        "timer": timer,
        "cache": case.cache,
        "cache_note": case.cache_note,
        "check": {"what": case.checked, "compared": compared},
        "bytes": {"moved": case.moved_bytes, "floor": case.floor, "basis": case.floor_basis},
        **receipts.compare(samples, case.baseline, case.targets),
    }


def _take_samples(case: Case) -> dict[str, list[float]]:
    samplers = {name: case.timer.prepare(work) for name, work in case.candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    for round_number in range(case.num_samples):
        order = list(samplers)
        # Forwards and backwards in turn, so that a drift of the machine favours nobody.
        for name in order if round_number % 2 == 0 else reversed(order):
            if case.before is not None:
                case.before()
            samples[name].append(round(samplers[name](), 4))
    return samples


def run(
    benchmark: Benchmark,
    *,
    smoke: bool = False,
    commit: str | None = None,
    clean: bool | None = None,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Runs every case, printing each as it is done, and returns the receipt.

    Args:
        benchmark: what to run.
        smoke: take the small cases.
        commit: revision of an exported tree; None asks git.
        clean: whether that tree was unchanged.
        command: words to repeat the run with; folders are cut off.

    Raises:
        ReceiptError: the result does not follow the receipt's schema.
    """
    cases = []
    for case in benchmark.build(smoke):
        cases.append(measure(case))
        print_case(cases[-1])
    sources = [*benchmark.sources, "benchmarks/harness.py"]
    receipt = {
        "schema": receipts.SCHEMA,
        **machine.describe_run(benchmark.name, sources, command, commit, clean),
        "cases": cases,
    }
    receipts.validate(receipt)
    return receipt


def print_case(case: Mapping[str, Any]) -> None:
    """Prints one measured case: a line for each candidate, with its ratio and target."""
    print(f"{case['name']} ({case['cache']}; {case['check']['what']})")
    for name, summary in case["candidates"].items():
        line = f"  {name:<34} {summary['median']:>14.1f} {case['unit']}"
        line += f"  [{summary['p20']:.1f} .. {summary['p80']:.1f}]"
        if name in case["ratios"]:
            line += f"  {case['ratios'][name]:.3f} x {case['baseline']}"
        if name in case["targets"]:
            in_unit = f"{{:g}} {case['unit']}".format
            line += f"  ({describe_target(case['targets'][name], in_unit)})"
        print(line)
    sys.stdout.flush()


def positive(text: str) -> int:
    """Returns an option's number, at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def new_file(text: str) -> Path:
    """Returns an option's path of a file to write, once measured, in a folder that is there."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that is there, got {path}")
    return path


@contextlib.contextmanager
def told_in_words(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Ends a command with code 2 and one paragraph where the library refuses what it was given."""
    try:
        yield
    except receipts.ReceiptError:
        # A bug of the benchmark's.
        raise
    except GramaryError as error:
        parser.exit(REFUSED, f"{parser.prog}: {error}\n")


def main(
    benchmark: Benchmark,
    arguments: Sequence[str] | None = None,
    given: Sequence[str] | None = None,
) -> None:
    """Runs a benchmark from its command line and writes its receipt.

    Args:
        benchmark: what to run.
        arguments: words of the command line; None asks the process.
        given: all words, where the benchmark took some for itself: they are the receipt's.
    """
    parser = argparse.ArgumentParser(prog=f"benchmarks.{benchmark.name}")
    parser.add_argument("--smoke", action="store_true", help="small cases, seconds; no receipt")
    parser.add_argument("--revision", help="commit of an exported tree (default: ask git)")
    parser.add_argument("--clean", action="store_true", help="that tree was unchanged")
    parser.add_argument("--out", type=Path, help="receipt file (default: benchmarks/results/)")
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(words)
    if not benchmark.can_run():
        parser.exit(3, f"{benchmark.name}: needs {benchmark.needs}, which is not here\n")
    with told_in_words(parser):
        receipt = run(
            benchmark,
            smoke=options.smoke,
            commit=options.revision,
            clean=options.clean if options.revision else None,
            command=["python", "-m", f"benchmarks.{benchmark.name}", *(given or words)],
        )
    if options.smoke and options.out is None:
        return
    path = options.out or machine.RESULTS / f"{benchmark.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    receipts.write(receipt, path)
    print(f"receipt: {path.name}")
