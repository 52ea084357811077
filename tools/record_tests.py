"""Runs tests and writes a receipt of them: python -m tools.record_tests NAME [pytest's words ...].

    python -m tools.record_tests gpu_tests -m gpu --numprocesses 8 tests

The receipt holds how many tests passed, were skipped and failed, by file, and the failures' names.
With --revision COMMIT an exported tree says which revision it is.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import counts, machine

SOURCES = ("src/gramary/**/*.py", "csrc/**/*pp", "tests/**/*.py")


def run_tests(words: list[str]) -> ElementTree.Element:
    """Runs pytest and returns its report's root."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junit-xml={report}", *words]
        subprocess.run(command, cwd=machine.ROOT, check=False)
        return ElementTree.parse(report).getroot()


def count_outcomes(report: ElementTree.Element) -> dict[str, Any]:
    """Returns a report as a run of `count_receipts.py`, without its name and parameters."""
    outcomes: Counter[str] = Counter()
    files: Counter[str] = Counter()
    failures = []
    for case in report.iter("testcase"):
        tags = {child.tag for child in case}
        name = f"{case.get('classname')}::{case.get('name')}"
        if tags & {"failure", "error"}:
            outcomes["failed"] += 1
            failures.append(name)
        elif "skipped" in tags:
            outcomes["skipped"] += 1
        else:
            outcomes["passed"] += 1
            files[str(case.get("classname"))] += 1
    seconds = sum(float(suite.get("time", 0)) for suite in report.iter("testsuite"))
    return {
        "seconds": seconds,
        "counts": {**outcomes, **{f"passed in {name}": files[name] for name in sorted(files)}},
        "failures": failures,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the tests and writes `benchmarks/results/NAME.json`; exits with 1 on a failure."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = counts.parser("tools.record_tests")
    parser.add_argument("name", help="the receipt's")
    # What the parser does not know is pytest's.
    options, words = parser.parse_known_args(given)

    def take_runs() -> list[dict[str, Any]]:
        named = {"name": options.name.replace("_", " "), "parameters": {"pytest": " ".join(words)}}
        return [named | count_outcomes(run_tests(words))]

    command = ["python", "-m", "tools.record_tests", *given]
    where = {"revision": options.revision, "out": options.out}
    sys.exit(not counts.write_counts(options.name, SOURCES, command, take_runs, **where))


if __name__ == "__main__":
    main()
