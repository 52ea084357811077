"""Compares two runs of the tests: python -m tools.compare_test_runs OLD.xml NEW.xml

Each is a report of `pytest --junit-xml`. Tests that are gone, that fail or that are skipped newly
are named, and the exit code is 1 where there are any; new tests are counted. The times are those of
the tests that both runs have, by file, and of the whole runs.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MOST_FILES = 15


class Outcome(NamedTuple):
    """How a test ended, and in how many seconds, set-up included."""

    state: str
    seconds: float


def read_outcomes(report: Path) -> dict[str, Outcome]:
    """Returns the outcomes of a report by the names of its tests: file::test[parameters]."""
    outcomes = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        tags = {child.tag for child in case}
        state = "failed" if tags & {"failure", "error"} else "passed"
        if "skipped" in tags:
            state = "skipped"
        name = f"{case.get('classname')}::{case.get('name')}"
        # A test that passed and whose teardown failed stands there twice.
        if name not in outcomes or state == "failed":
            outcomes[name] = Outcome(state, float(case.get("time", 0)))
    return outcomes


def find_losses(old: Mapping[str, Outcome], new: Mapping[str, Outcome]) -> list[str]:
    """Returns a line for each test that was there, or passed, and does not any more."""
    losses = []
    for name, before in old.items():
        if name not in new:
            losses.append(f"gone: {name}")
        elif new[name].state != "passed" and before.state != new[name].state:
            losses.append(f"{new[name].state}, was {before.state}: {name}")
    return losses


def seconds_by_file(outcomes: Mapping[str, Outcome], names: set[str]) -> dict[str, float]:
    """Returns the seconds of these tests by file."""
    seconds: dict[str, float] = defaultdict(float)
    for name in names:
        seconds[name.partition("::")[0]] += outcomes[name].seconds
    return seconds


def describe_times(old: Mapping[str, Outcome], new: Mapping[str, Outcome]) -> list[str]:
    """Returns a line for each file whose time changed most, and one for all tests of both runs."""
    common = old.keys() & new.keys()
    before, after = seconds_by_file(old, common), seconds_by_file(new, common)
    changed = sorted(before, key=lambda file: -abs(after[file] - before[file]))[:MOST_FILES]
    lines = [f"{before[file]:8.1f} s {after[file]:8.1f} s  {file}" for file in changed]
    whole, now = sum(before.values()), sum(after.values())
    ratio = f", {now / whole:.3f} of before" if whole else ""
    return [*lines, f"{whole:8.1f} s {now:8.1f} s  {len(common)} tests of both runs{ratio}"]


def main() -> None:
    """Prints what was lost and what became of the times."""
    parser = argparse.ArgumentParser(prog="tools.compare_test_runs", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args()
    old, new = read_outcomes(options.old), read_outcomes(options.new)
    losses = find_losses(old, new)
    print(*losses, *describe_times(old, new), sep="\n")
    print(f"{len(losses)} lost, {len(new.keys() - old.keys())} new")
    sys.exit(bool(losses))


if __name__ == "__main__":
    main()
