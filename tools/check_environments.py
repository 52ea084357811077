"""Runs the tests in every environment that they have to pass in, for a receipt.

    python -m tools.check_environments                         all of them, where it stopped
    python -m tools.check_environments tmpfs one_cpu           these
    python -m tools.check_environments --list                  what there is, and how to run each
    python -m tools.check_environments avx2 -- tests/native    fewer tests, without a receipt

Results are kept in build/environments and used again while no source has changed; `--again` forgets
them. What this machine cannot give is named with the reason. It takes an hour or two, and is no
part of what every change has to pass.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import counts, machine
from tools.environments.catalogue import ENVIRONMENTS
from tools.environments.environment import Environment, NotHereError, Place
from tools.record_tests import SOURCES, count_outcomes

NUM_PROCESSES = 2
ALL_TESTS = ["tests"]


def pytest_words(environment: Environment, tests: Sequence[str]) -> list[str]:
    """Returns what Python is given to run the tests, without their report."""
    num_processes = str(min(NUM_PROCESSES, environment.num_processes))
    spread = ["--numprocesses", num_processes, "--dist", "worksteal"]
    return ["-m", "pytest", "-p", "no:cacheprovider", *spread, *tests]


def run_tests(environment: Environment, place: Place, tests: Sequence[str]) -> dict[str, Any]:
    """Runs the tests in a place; returns a run of `count_receipts.py`."""
    # Its user may be one who writes to no other folder.
    reports = Path(place.variables.get("HOME", environment.folder))
    report = reports / "report.xml"
    report.unlink(missing_ok=True)
    words = [*pytest_words(environment, tests), f"--junit-xml={report}"]
    print(f"$ {place.as_typed(words)}", flush=True)
    done = subprocess.run(
        place.command(words), cwd=place.tree, env=os.environ | place.variables, check=False
    )
    if not report.exists():
        raise NotHereError(f"pytest ended with code {done.returncode} and wrote no report")
    root = ElementTree.parse(report).getroot()
    run = count_outcomes(root)
    run["counts"] |= count_missing_abilities(root)
    if done.returncode and not run["failures"]:
        run["failures"] = [f"pytest ended with code {done.returncode}"]
    return {"name": environment.name, "parameters": describe(environment, place, tests)} | run


def count_missing_abilities(report: ElementTree.Element) -> dict[str, int]:
    """Returns how many tests were skipped for want of each ability."""
    missing: Counter[str] = Counter()
    for skipped in report.iter("skipped"):
        message = str(skipped.get("message"))
        if message.startswith("needs "):
            missing[f"skipped, {message.partition(':')[0]}"] += 1
    return dict(sorted(missing.items()))


def describe(environment: Environment, place: Place, tests: Sequence[str]) -> dict[str, str]:
    """Returns what a receipt says of an environment; no path of this machine."""
    settings = {
        name: machine.without_folder(value)
        for name, value in place.variables.items()
        if name.startswith(("GRAMARY_", "ATEN_", "TMPDIR"))
    }
    facts = {"what": environment.what, "tests": " ".join(tests)} | settings
    if place.confinement:
        facts["confined"] = " ".join(place.confinement)
    return facts


def hash_tree() -> str:
    """Returns one number for everything that results depend on."""
    patterns = (*SOURCES, "pyproject.toml", "CMakeLists.txt", "tools/**/*.py", "tools/*.sh")
    return hashlib.sha256(json.dumps(machine.hash_sources(patterns)).encode()).hexdigest()


def take_result(environment: Environment, tests: Sequence[str], tree: str) -> dict[str, Any]:
    """Returns {tree, tests, run} or {tree, tests, not_here}, and keeps it."""
    result: dict[str, Any] = {"tree": tree, "tests": list(tests)}
    environment.folder.mkdir(parents=True, exist_ok=True)
    try:
        place = environment.prepare(environment.folder)
        result["run"] = run_tests(environment, place, tests)
    except NotHereError as error:
        result["not_here"] = " ".join(str(error).split())
    (environment.folder / "result.json").write_text(json.dumps(result))
    return result


def find_result(environment: Environment, tests: Sequence[str], tree: str) -> dict[str, Any] | None:
    """Returns the result of an earlier run of the same tests on the same tree that passed."""
    path = environment.folder / "result.json"
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    is_same = (result["tree"], result["tests"]) == (tree, list(tests))
    return result if is_same and "run" in result and not result["run"]["failures"] else None


def tell(name: str, result: dict[str, Any], *, is_old: bool) -> None:
    """Prints an environment's result in a line."""
    if "not_here" in result:
        print(f"{name}: cannot be had here: {result['not_here']}", flush=True)
        return
    run = result["run"]
    told = ", ".join(
        f"{count} {what}" for what, count in run["counts"].items() if "in " not in what
    )
    print(f"{name}: {told}, {run['seconds']:.0f} s{' (earlier)' if is_old else ''}", flush=True)
    print(*(f"  {failure}" for failure in run["failures"]), sep="\n" if run["failures"] else "")


def print_list() -> None:
    """Prints each environment with the command that runs it."""
    for environment in ENVIRONMENTS:
        print(f"{environment.name:14} {environment.what}")
        print(f"{'':14} python -m tools.check_environments {environment.name}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options; `environments` are those that were named, or all."""
    parser = argparse.ArgumentParser(
        prog="tools.check_environments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    known = {environment.name: environment for environment in ENVIRONMENTS}
    parser.add_argument("names", nargs="*", metavar="ENVIRONMENT", help=", ".join(known))
    parser.add_argument("--list", action="store_true", help="show what there is")
    parser.add_argument("--again", action="store_true", help="use no earlier result")
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    options.tests = words[cut + 1 :] or ALL_TESTS
    for name in options.names:
        if name not in known:
            parser.error(f"there is no environment {name!r}; there are {', '.join(known)}")
    options.environments = [known[name] for name in options.names] or list(ENVIRONMENTS)
    return options


def write_receipt(results: dict[str, dict[str, Any]]) -> bool:
    """Writes the receipt of all environments; returns whether none failed."""
    runs = [result["run"] for result in results.values() if "run" in result]
    for name, result in results.items():
        if "not_here" in result:
            words = map(machine.without_folder, result["not_here"].split())
            runs[0]["parameters"][f"not here: {name}"] = " ".join(words)
    command = ["python", "-m", "tools.check_environments"]
    return counts.write_counts("environments", SOURCES, command, lambda: runs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what was asked for; exits with 1 where a test failed."""
    options = parse(arguments)
    if options.list:
        print_list()
        return
    tree = hash_tree()
    results = {}
    for environment in options.environments:
        earlier = None if options.again else find_result(environment, options.tests, tree)
        results[environment.name] = earlier or take_result(environment, options.tests, tree)
        tell(environment.name, results[environment.name], is_old=earlier is not None)
    print("\nin short:")
    for name, result in results.items():
        tell(name, result, is_old=False)
    if options.tests == ALL_TESTS and len(results) == len(ENVIRONMENTS):
        write_receipt(results)
    sys.exit(any(result.get("run", {}).get("failures") for result in results.values()))


if __name__ == "__main__":
    main()
