"""Runs benchmarks: `python -m benchmarks.run [--smoke] [NAME ...]`, without names all.

Each runs in a process of its own, so that none inherits another's memory or threads. A name is a
subject of `subjects.py` or a module of this folder. A run for one peer (`--against`), or with a
place for its receipt (`--json`) or its picture (`--plot`), leaves benchmarks/results/ alone.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import benchmarks
from benchmarks.harness import REFUSED, Benchmark
from benchmarks.machine import ROOT
from benchmarks.one import NOTHING_TO_COMPARE
from benchmarks.peers import PEERS
from benchmarks.subjects import SUBJECTS, choose_device, modules_of

# A module of these that is not there is a bug, not a package to install.
OWN_PACKAGES = ("benchmarks", "gramary")


def find_benchmarks() -> tuple[dict[str, Benchmark], dict[str, str]]:
    """Returns the benchmarks of this folder by module name, and the package that each other lacks.

    Raises:
        ModuleNotFoundError: a module of our own is not there.
    """
    found, lacking = {}, {}
    for info in pkgutil.iter_modules(benchmarks.__path__):
        try:
            module = importlib.import_module(f"benchmarks.{info.name}")
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in OWN_PACKAGES:
                raise
            lacking[info.name] = package
            continue
        benchmark = getattr(module, "BENCHMARK", None)
        if isinstance(benchmark, Benchmark):
            assert benchmark.name == info.name, f"{info.name} calls itself {benchmark.name}"
            found[info.name] = benchmark
    return found, lacking


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the named benchmarks, or all; exits with 1 when one failed, with 2 when all refused."""
    parser = argparse.ArgumentParser(prog="benchmarks.run")
    parser.add_argument("names", nargs="*", help="benchmarks to run (default: all)")
    parser.add_argument("--smoke", action="store_true", help="small cases, seconds; no receipts")
    parser.add_argument("--against", choices=sorted(PEERS), help="compare with this peer only")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU, if one is here")
    parser.add_argument("--json", type=Path, help="receipt to write instead")
    parser.add_argument("--plot", type=Path, help="picture to draw")
    options, passed_on = parser.parse_known_args(arguments)
    available, lacking = find_benchmarks()
    device = choose_device(options.device)
    names = modules_of(options.names, device) or sorted((*available, *lacking))
    unknown = [name for name in names if name not in available and name not in lacking]
    if unknown:
        known = ", ".join(dict.fromkeys((*SUBJECTS, *sorted((*available, *lacking)))))
        parser.error(f"no benchmark {unknown[0]!r}; there are: {known}")
    failed: dict[str, int] = {}
    compared = 0
    for name in names:
        if name in lacking or not available[name].can_run():
            needs = lacking.get(name) or available[name].needs
            print(f"== {name}: skipped, needs {needs}", flush=True)
            continue
        print(f"== {name}", flush=True)
        words = [*command_of(name, options, len(names)), *passed_on]
        if hasattr(importlib.import_module(f"benchmarks.{name}"), "make_benchmark"):
            words += ["--device", device]
        code = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=False).returncode
        compared += code != NOTHING_TO_COMPARE
        if code not in (0, NOTHING_TO_COMPARE):
            failed[name] = code
    if options.against and not compared:
        sys.exit(f"nothing of {', '.join(names)} can be compared with {options.against} here")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        sys.exit(REFUSED if set(failed.values()) == {REFUSED} else 1)


def command_of(name: str, options: argparse.Namespace, num_names: int) -> list[str]:
    """Returns the words that run one benchmark, by its own command line or with our options."""
    smoke = ["--smoke"] if options.smoke else []
    if not (options.against or options.json or options.plot):
        return [f"benchmarks.{name}", *smoke]
    words = ["benchmarks.one", name, *smoke]
    words += ["--against", options.against] if options.against else []
    for option, path in (("--json", options.json), ("--plot", options.plot)):
        if path:
            # Several benchmarks, several files.
            own = path if num_names == 1 else path.with_stem(f"{path.stem}-{name}")
            words += [option, str(own)]
    return words


if __name__ == "__main__":
    main()
