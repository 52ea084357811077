"""A built package in a process of its own, so that two of them can be compared in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine


class PackageProcess:
    """A process that runs a module of the benchmarks with one package.

    The module reads a JSON list a line, a method's name and its arguments, and answers a line each.

    Args:
        package: the folder that holds `gramary`.
        module: what runs.
        arguments: its command line.

    Raises:
        FileNotFoundError: the folder holds no built package.
    """

    def __init__(self, package: Path, module: str, *arguments: str) -> None:
        if not list((package / "gramary" / "native").glob("_core*.so")):
            raise FileNotFoundError(f"{package}: expected a folder with a built gramary in it")
        paths = os.pathsep.join(map(str, (package, machine.ROOT)))
        self._child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=dict(os.environ, PYTHONPATH=paths, PYTHONSAFEPATH="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._package = package

    def describe(self) -> dict[str, Any]:
        """Returns what it says of itself, once it is sure that its package is this one."""
        facts: dict[str, Any] = self.ask("describe")
        assert Path(facts["package"]).samefile(self._package / "gramary"), facts
        return facts

    def ask(self, method: str, *arguments: object) -> Any:
        """Returns what a method of the module's side returns."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            raise RuntimeError(f"a process ended with code {self._child.wait()}: {method}")
        return json.loads(answer)

    def close(self) -> None:
        """Ends the process."""
        self._child.communicate()
