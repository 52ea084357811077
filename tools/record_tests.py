"""Runs tests and writes a receipt of them: python tools/record_tests.py NAME [pytest's words ...].

    python tools/record_tests.py gpu_tests -m gpu --numprocesses 8 tests

The receipt holds how many tests passed, were skipped and failed, by file, and the failures' names.
With GRAMARY_REVISION=<commit> an exported tree says which revision it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import machine
from gramary import count_receipts, receipts

SOURCES = ("src/gramary/**/*.py", "csrc/**/*pp", "tests/**/*.py")
RESULTS = machine.ROOT / "benchmarks" / "results"


def run_tests(words: list[str]) -> ElementTree.Element:
    """Runs pytest and returns its report's root."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junit-xml={report}", *words]
        subprocess.run(command, cwd=machine.ROOT, check=False)
        return ElementTree.parse(report).getroot()


def count_outcomes(report: ElementTree.Element) -> dict[str, Any]:
    """Returns a report as a run of `count_receipts.py`, without its name and parameters."""
    counts: Counter[str] = Counter()
    files: Counter[str] = Counter()
    failures = []
    for case in report.iter("testcase"):
        outcomes = {child.tag for child in case}
        name = f"{case.get('classname')}::{case.get('name')}"
        if outcomes & {"failure", "error"}:
            counts["failed"] += 1
            failures.append(name)
        elif "skipped" in outcomes:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
            files[str(case.get("classname"))] += 1
    seconds = sum(float(suite.get("time", 0)) for suite in report.iter("testsuite"))
    return {
        "seconds": seconds,
        "counts": {**counts, **{f"passed in {name}": files[name] for name in sorted(files)}},
        "failures": failures,
    }


def main() -> None:
    """Runs the tests and writes `benchmarks/results/NAME.json`; exits with 1 on a failure."""
    name, *words = sys.argv[1:]
    commit = os.environ.get("GRAMARY_REVISION")
    command = ["python", "tools/record_tests.py", name, *words]
    head = machine.describe_run(name, SOURCES, command, commit, True if commit else None)
    outcomes = count_outcomes(run_tests(words))
    run = {"name": name.replace("_", " "), "parameters": {"pytest": " ".join(words)}, **outcomes}
    receipts.write(
        {"schema": count_receipts.SCHEMA, **head, "runs": [run]}, RESULTS / f"{name}.json"
    )
    print(f"receipt: {name}.json")
    sys.exit(bool(outcomes["failures"]))


if __name__ == "__main__":
    main()
