"""Runs GPU tests under compute-sanitizer, for a receipt: python tools/sanitize.py [tests ...].

Without words, the tests of the PLE operations' run and export. `memcheck` finds accesses out of
bounds, `racecheck` races in shared memory; each is a run of the receipt, which counts the tests
that passed under it. With GRAMARY_REVISION=<commit> an exported tree says which revision it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from benchmarks import machine
from gramary import count_receipts, receipts

TOOLS = ("memcheck", "racecheck")
TESTS = ("tests/ple/test_run.py", "tests/ple/test_export.py", "-k", "cuda and not every_offset")
SOURCES = ("src/gramary/ops/_triton/*.py", "src/gramary/ple/*.py", "tests/ple/*.py")
RESULTS = machine.ROOT / "benchmarks" / "results"

# What each tool ends with: memcheck's sum of errors, racecheck's of hazards.
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error)|(?:RACECHECK SUMMARY: (\d+) hazard)")


def count_found(output: str) -> int | None:
    """Returns the errors or hazards of a tool's output, of all its processes; None without any
    summary."""
    found = [int(errors or hazards) for errors, hazards in SUMMARY.findall(output)]
    return sum(found) if found else None


def sanitize(tool: str, words: list[str]) -> dict[str, Any]:
    """Runs the tests under one tool; returns a run of `count_receipts.py`."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", sys.executable,
                   "-m", "pytest", "-q", f"--junit-xml={report}", "-p", "no:cacheprovider",
                   *words]  # fmt: skip
        # Every tensor is an allocation of its own, so that a stray access meets no neighbour.
        variables = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        done = subprocess.run(
            command, cwd=machine.ROOT, env=variables, capture_output=True, text=True, check=False
        )
        print(done.stdout[-2000:], done.stderr[-2000:])
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    passed = sum(len(case) == 0 for case in cases)
    found = count_found(done.stdout + done.stderr)
    failures = [] if found == 0 else [f"{tool}: {'no summary' if found is None else found}"]
    failures += [] if done.returncode == 0 else [f"{tool}: exit code {done.returncode}"]
    return {
        "name": tool,
        "parameters": {"tests": " ".join(words)},
        "seconds": time.monotonic() - started,
        "counts": {"tests passed": passed, "errors": found or 0},
        "failures": failures,
    }


def main() -> None:
    """Runs both tools and writes `benchmarks/results/sanitizer.json`; exits with 1 on an error."""
    words = sys.argv[1:] or list(TESTS)
    commit = os.environ.get("GRAMARY_REVISION")
    command = ["python", "tools/sanitize.py", *sys.argv[1:]]
    head = machine.describe_run("sanitizer", SOURCES, command, commit, True if commit else None)
    runs = [sanitize(tool, words) for tool in TOOLS]
    receipt = {"schema": count_receipts.SCHEMA, **head, "runs": runs}
    receipts.write(receipt, RESULTS / "sanitizer.json")
    print("receipt: sanitizer.json")
    sys.exit(any(run["failures"] for run in runs))


if __name__ == "__main__":
    main()
