"""Runs GPU tests under compute-sanitizer, for a receipt: python -m tools.sanitize [tests ...].

Without words, the tests of the PLE operations' run and export. `memcheck` finds accesses out of
bounds, `racecheck` races in shared memory; each is a run of the receipt, which counts the tests
that passed under it. With --revision COMMIT an exported tree says which revision it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import counts, machine

TOOLS = ("memcheck", "racecheck")
TESTS = ("tests/ple/test_run.py", "tests/ple/test_export.py", "-k", "cuda and not every_offset")
SOURCES = ("src/gramary/ops/_triton/*.py", "src/gramary/ple/*.py", "tests/ple/*.py")

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs both tools and writes `benchmarks/results/sanitizer.json`; exits with 1 on an error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, words = counts.parser("tools.sanitize").parse_known_args(given)
    passed = counts.write_counts(
        "sanitizer",
        SOURCES,
        ["python", "-m", "tools.sanitize", *given],
        lambda: [sanitize(tool, words or list(TESTS)) for tool in TOOLS],
        revision=options.revision,
        out=options.out,
    )
    sys.exit(not passed)


if __name__ == "__main__":
    main()
