"""Runs every benchmark that this machine can: `python -m benchmarks.run [--smoke] [NAME ...]`.

Each benchmark runs in a process of its own, so that none inherits another's memory or threads.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Sequence

import benchmarks
from benchmarks.harness import Benchmark
from benchmarks.machine import ROOT


def find_benchmarks() -> dict[str, Benchmark]:
    """Returns the benchmarks of this folder by module name."""
    found = {}
    for info in pkgutil.iter_modules(benchmarks.__path__):
        module = importlib.import_module(f"benchmarks.{info.name}")
        benchmark = getattr(module, "BENCHMARK", None)
        if isinstance(benchmark, Benchmark):
            assert benchmark.name == info.name, f"{info.name} calls itself {benchmark.name}"
            found[info.name] = benchmark
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the named benchmarks, or all; exits with 1 when one failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.run")
    parser.add_argument("names", nargs="*", help="benchmarks to run (default: all)")
    parser.add_argument("--smoke", action="store_true", help="small cases, seconds; no receipts")
    options, passed_on = parser.parse_known_args(arguments)
    available = find_benchmarks()
    unknown = [name for name in options.names if name not in available]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are: {', '.join(available)}")
    failed = []
    for name in options.names or available:
        if not available[name].can_run():
            print(f"== {name}: skipped, needs {available[name].needs}", flush=True)
            continue
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *passed_on]
        command += ["--smoke"] if options.smoke else []
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
