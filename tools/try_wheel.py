"""Installs the wheels of dist/ into empty environments and uses them there.

    python -m tools.try_wheel [--torch torch==2.13.0] [--pythons PYTHON...]
    python -m tools.try_wheel --core-only [--pythons PYTHON...]

An environment has the wheel and what pip brings for it, nothing of which is compiled there, and a
search path of its own programs alone: no compiler. In it `gramary doctor` runs, and `gramary
generate` writes with models/tiny, its rows on disk, and again with all rows in memory.
With --core-only it has the wheel and no torch, and tools/try_core.py uses the core.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools import interpreters
from tools.interpreters import Interpreter
from tools.make_wheel import DIST, ROOT, Wheel

MODEL = ROOT / "models" / "tiny"
PROMPT = "And it came to pass in those days"


class Environment:
    """An empty virtual environment; its programs find each other and nothing else.

    What is inherited is how pip reaches packages and where files may lie; the compiler of the
    machine, the tree and its environment are out of sight.
    """

    def __init__(self, python: Interpreter, folder: Path) -> None:
        self.folder = folder / "environment"
        subprocess.run([python.program, "-m", "venv", str(self.folder)], check=True)
        inherited = ("HOME", "TMPDIR", "SSL_CERT_FILE", "OMP_NUM_THREADS")
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if name in inherited or name.startswith(("PIP_", "OPENBLAS_"))
        }
        self.variables |= {"PATH": str(self.folder / "bin"), "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}

    def run(self, *words: str) -> str:
        """Runs a program of this environment in its folder; returns what it printed.

        Raises:
            SystemExit: it failed.
        """
        done = subprocess.run(
            [str(self.folder / "bin" / words[0]), *words[1:]],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(
                f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def site_packages(self) -> Path:
        """Returns where its packages lie."""
        code = "import sysconfig; print(sysconfig.get_path('platlib'))"
        return Path(self.run("python", "-c", code).strip())

    def install(self, *requirements: str) -> None:
        """Installs packages that are built already."""
        self.run("python", "-m", "pip", "install", "-qq", "--only-binary", ":all:", *requirements)


def find_wheel(python: Interpreter) -> Path:
    """Returns the wheel of dist/ that a Python takes.

    Raises:
        SystemExit: `make wheel` has not made it.
    """
    tag = Wheel(python, platform.machine()).tag
    found = sorted(DIST.glob(f"gramary-*-{tag}.whl"))
    if not found:
        raise SystemExit(f"dist/ has no wheel {tag}: run `make wheel` first")
    return found[-1]


def try_core(python: Interpreter, folder: Path) -> str:
    """Returns what the core does in an environment that has the wheel and nothing else."""
    environment = Environment(python, folder)
    environment.install("--no-deps", str(find_wheel(python)))
    packages = str(environment.site_packages())
    return environment.run("python", str(ROOT / "tools" / "try_core.py"), packages)


def try_package(python: Interpreter, torch: Sequence[str], folder: Path) -> str:
    """Returns what the package prints in an environment as a user would make it."""
    environment = Environment(python, folder)
    environment.install(f"{find_wheel(python)}[transformers]", *torch)
    where = environment.run("python", "-c", "import gramary; print(gramary.__file__)").strip()
    if not Path(where).is_relative_to(environment.folder):
        raise SystemExit(f"gramary was imported from {where}, expected the environment's own")
    doctor = environment.run("gramary", "doctor", "--model", str(MODEL))
    words = ("--placement", "disk", "--compare", "resident", "--max-new-tokens", "24")
    text = environment.run("gramary", "generate", "--model", str(MODEL), "--prompt", PROMPT, *words)
    return doctor + text


def main() -> None:
    """Tries what the command line asks for, one Python after the other."""
    parser = argparse.ArgumentParser(prog="tools.try_wheel", description=__doc__)
    parser.add_argument("--pythons", nargs="*", default=[], help="default: those of this machine")
    parser.add_argument("--torch", nargs="*", default=[], help="such as torch==2.13.0")
    parser.add_argument("--core-only", action="store_true", help="without torch")
    options = parser.parse_args()
    pythons = interpreters.find(options.pythons)
    if len(pythons) < 2 and not options.pythons:
        raise SystemExit("a wheel is tried with two Pythons or more: name them with --pythons")
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            if options.core_only:
                said = try_core(python, Path(folder))
            else:
                said = try_package(python, options.torch, Path(folder))
        print(f"== {python.program}\n{said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
