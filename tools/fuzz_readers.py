"""Fuzz the checkpoint and pack readers, guided by coverage.

    python -m tools.fuzz_readers --minutes 60

Atheris (libFuzzer for Python) invents bytes; `tools/fuzzing` turns them into damaged folders and
packs, lets gramary read them and judges the result by an independent reader. Whatever is neither a
GramaryError nor right rows is a failure; so is a trial of more than 30 s, a crash and a descriptor
that stays open. Afterwards every input that reached something new runs once more under
coverage.py, and all is written to a receipt.

Needs atheris and coverage: pip install 'gramary[fuzz]'.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks import counts, machine

READERS = (
    "src/gramary/files/checkpoint/*.py",
    "src/gramary/files/pack/*.py",
    "src/gramary/files/layout.py",
    "src/gramary/files/stream.py",
    "src/gramary/files/source.py",
)
SOURCES = (*READERS, "tools/fuzz_readers.py", "tools/fuzzing/*.py")
MAX_INPUT_BYTES = 160
MAX_TRIAL_SECONDS = 30
MAX_FAILURES = 50


class Record:
    """What the fuzzing process has seen so far, kept in a file, as libFuzzer ends it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started = self._written = time.monotonic()
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._failures: dict[str, str] = {}
        self._descriptors = 0

    def add(self, outcome: str) -> None:
        """Counts one trial; writes the file now and then."""
        self._outcomes[outcome] += 1
        now = time.monotonic()
        if now - self._written > 1:
            self._written = now
            self._look_at_descriptors()
            self.write()

    def fail(self, error: BaseException, data: bytes) -> None:
        """Keeps a failure, once for each place where it is raised."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        line = f"{type(error).__name__} at {where}: {str(error)[:200]} [input {data.hex()}]"
        if len(self._failures) < MAX_FAILURES:
            self._failures.setdefault(f"{type(error).__name__} {where}", line)

    def write(self) -> None:
        """Writes everything."""
        seen = {
            "seconds": time.monotonic() - self._started,
            "outcomes": dict(self._outcomes),
            "failures": list(self._failures.values()),
        }
        self._path.write_text(json.dumps(seen))

    def _look_at_descriptors(self) -> None:
        count = len(os.listdir("/proc/self/fd"))
        if self._descriptors and count > self._descriptors + 8:
            self._failures.setdefault("descriptors", f"{count} descriptors are open")
        self._descriptors = self._descriptors or count


def fuzz(work: Path, seconds: int, seed: int) -> None:
    """Fuzzes in this process until the time is over; does not return."""
    import atheris

    with atheris.instrument_imports(include=["gramary"], exclude=_names_of_others()):
        from tools.fuzzing import seeds, verdict
    seeds.all_seeds()
    record = Record(work / "record.json")

    def one_input(data: bytes) -> None:
        outcome = "failed"
        try:
            outcome = verdict.try_bytes(data, work / "trial")
        except Exception as error:
            record.fail(error, data)
        record.add(outcome)

    options = {
        "max_total_time": seconds,
        "timeout": MAX_TRIAL_SECONDS,
        "max_len": MAX_INPUT_BYTES,
        "rss_limit_mb": 6000,
        "seed": seed,
        "artifact_prefix": f"{work}/crash-",
        "print_final_stats": 1,
        "verbosity": 1,
    }
    words = [sys.argv[0], *(f"-{name}={value}" for name, value in options.items())]
    atheris.Setup([*words, str(work / "corpus")], one_input)
    atheris.Fuzz()


def _names_of_others() -> list[str]:
    """Returns the modules of gramary that are no readers: instrumenting them only costs time."""
    package = machine.ROOT / "src"
    readers = {path for pattern in READERS for path in machine.ROOT.glob(pattern)}
    others = set((package / "gramary").rglob("*.py")) - readers
    return [
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        for path in others
    ]


def replay(work: Path) -> None:
    """Runs every input of the corpus once and writes the readers' line coverage."""
    import coverage

    include = [str(machine.ROOT / pattern) for pattern in READERS]
    measured = coverage.Coverage(data_file=None, include=include, messages=False)
    measured.start()
    from tools.fuzzing import verdict

    for path in sorted((work / "corpus").iterdir()):
        try:
            verdict.try_bytes(path.read_bytes(), work / "trial")
        except Exception as error:
            print(f"{path.name}: {error!r}", file=sys.stderr)
    measured.stop()
    lines = {}
    for file in sorted(measured.get_data().measured_files()):
        _, statements, _, missing, _ = measured.analysis2(file)
        lines[str(Path(file).relative_to(machine.ROOT))] = [len(statements), sorted(missing)]
    (work / "lines.json").write_text(json.dumps(lines))


def plant(corpus: Path) -> None:
    """Writes first inputs: every seed as it is, at every placement."""
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in range(10):
        for placement in range(3):
            data = bytes([0, seed, 0, placement % 2, 1, 1, placement])
            (corpus / f"seed-{seed}-{placement}").write_bytes(data)
    for codec in range(4):
        for left in range(9):
            data = bytes([7, codec % 3, codec, left // 3, left % 3, 0])
            (corpus / f"build-{codec}-{left}").write_bytes(data)


def describe(work: Path, seconds: int, seed: int, exit_code: int) -> dict[str, Any]:
    """Returns the run as `count_receipts.py` wants it."""
    seen = json.loads((work / "record.json").read_text())
    lines = json.loads((work / "lines.json").read_text())
    outcomes = seen["outcomes"]
    failures = list(seen["failures"])
    failures += [f"crash or hang: {path.read_bytes().hex()}" for path in work.glob("crash-*")]
    if exit_code:
        failures.append(f"the fuzzing process ended with exit code {exit_code}")
    total = sum(count for count, _ in lines.values())
    covered = total - sum(len(missing) for _, missing in lines.values())
    counted = {
        "executions": sum(outcomes.values()),
        "inputs that reached something new": len(list((work / "corpus").iterdir())),
        **{f"ended as: {name}": outcomes[name] for name in sorted(outcomes)},
        "reader lines": total,
        "reader lines covered": covered,
    }
    for path, (count, missing) in lines.items():
        counted[f"{path}: lines"] = count
        counted[f"{path}: lines covered"] = count - len(missing)
    parameters = {
        "engine": "atheris (libFuzzer), instrumented: the readers",
        "seed": seed,
        "max_total_seconds": seconds,
        "max_input_bytes": MAX_INPUT_BYTES,
        "coverage": "lines of the readers, by replaying the corpus",
    }
    return {
        "name": "fuzzing the readers",
        "parameters": parameters,
        "seconds": seen["seconds"],
        "counts": counted,
        "failures": failures,
    }


def take_run(work: Path, seconds: int, seed: int) -> dict[str, Any]:
    """Fuzzes and replays in processes of their own; returns the run."""
    plant(work / "corpus")
    num_planted = len(list((work / "corpus").iterdir()))
    words = [sys.executable, "-m", "tools.fuzz_readers", "--work", str(work), "--seed", str(seed)]
    with open(work / "log", "wb") as log:
        fuzzing = [*words, "--step", "fuzz", "--minutes", str(seconds / 60)]
        exit_code = subprocess.run(fuzzing, stderr=log, cwd=machine.ROOT, check=False).returncode
        subprocess.run([*words, "--step", "replay"], stderr=log, cwd=machine.ROOT, check=True)
    result = describe(work, seconds, seed, exit_code)
    result["parameters"]["first_inputs"] = num_planted
    seen = result["counts"]
    share = seen["reader lines covered"] / seen["reader lines"]
    print(f"{seen['executions']} executions in {result['seconds']:.0f} s, readers {share:.1%}")
    return result


def main() -> None:
    """Runs the command line."""
    parser = counts.parser("tools.fuzz_readers")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help="folder to work in and keep (default: a new one)")
    parser.add_argument("--step", choices=["fuzz", "replay"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    seconds = max(1, round(options.minutes * 60))
    if options.step:
        step = (options.work, seconds, options.seed)
        sys.exit(fuzz(*step) if options.step == "fuzz" else replay(options.work))
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        passed = counts.write_counts(
            "fuzz_readers",
            SOURCES,
            ["python", "-m", "tools.fuzz_readers", *sys.argv[1:]],
            lambda: [take_run(work, seconds, options.seed)],
            revision=options.revision,
            out=options.out,
        )
    sys.exit(not passed)


if __name__ == "__main__":
    main()
