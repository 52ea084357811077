"""Makes the archives of a release in dist/: the source archive, and from it the wheels.

    python -m tools.make_wheel [--machine aarch64] [--pythons PYTHON...]

One wheel is for Python 3.11, one for 3.12 and every later version (their stable ABI); both are
compiled by Zig (tools/zig.cmake) for the C library of manylinux_2_28, with the C++ runtime inside.
What was made is checked, and a fault ends this with exit code 1. CONTRIBUTING.md says why.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import archive_rules, interpreters
from tools.interpreters import Interpreter

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
MACHINES = ("x86_64", "aarch64")
FIRST_STABLE = (3, 12)  # the first Python whose stable ABI suffices nanobind


@dataclass(frozen=True)
class Wheel:
    """A wheel to make: with which Python, for which Pythons and which machine."""

    python: Interpreter
    machine: str

    @property
    def is_stable(self) -> bool:
        """Whether it serves every Python from 3.12 on, and not one version."""
        return self.python.version >= FIRST_STABLE

    @property
    def tag(self) -> str:
        """The end of its name, such as `cp312-abi3-manylinux_2_28_x86_64`."""
        glibc = "_".join(map(str, archive_rules.GLIBC))
        python = "cp312-abi3" if self.is_stable else "cp311-cp311"
        return f"{python}-manylinux_{glibc}_{self.machine}"


def plan(pythons: Sequence[Interpreter], machine: str) -> list[Wheel]:
    """Returns the wheels that serve every Python from 3.11 on.

    Raises:
        SystemExit: a Python that one of them is built with is missing.
    """
    able = [python for python in pythons if python.has_headers]
    old = [python for python in able if python.version == (3, 11)]
    stable = [python for python in able if python.version >= FIRST_STABLE]
    if not (old and stable):
        found = ", ".join(python.program for python in able) or "none"
        raise SystemExit(
            "wheels are built with Python 3.11 and with one of 3.12 or newer, each with its "
            f"headers; found: {found}. Name them: make wheel PYTHONS='python3.11 python3.12'"
        )
    return [Wheel(old[0], machine), Wheel(stable[0], machine)]


def make_sdist() -> Path:
    """Returns the source archive of this tree, made in dist/."""
    command = (
        "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    )
    before = set(DIST.glob("*.tar.gz"))
    for old in before:
        old.unlink()
    subprocess.run([sys.executable, "-c", command, str(DIST)], cwd=ROOT, check=True)
    [made] = DIST.glob("gramary-*.tar.gz")
    return made


def make_wheel(wheel: Wheel, sdist: Path, folder: Path) -> Path:
    """Returns a wheel made from the source archive; `folder` is for what is only used here."""
    for old in DIST.glob(f"gramary-*-{wheel.tag}.whl"):
        old.unlink()
    settings = {
        "cmake.toolchain-file": ROOT / "tools" / "zig.cmake",
        "cmake.version": ">=3.26",  # the first that finds the stable ABI
        "wheel.py-api": "cp312",  # of no effect before Python 3.12
        "wheel.tags": wheel.tag,
        "wheel.reproducible": "true",
    }
    command = [sys.executable, "-m", "pip", "--python", wheel.python.program, "wheel", "--no-deps",
               "--no-cache-dir", "--wheel-dir", str(DIST)]  # fmt: skip
    for name, value in settings.items():
        command += ["--config-settings", f"{name}={value}"]
    subprocess.run([*command, str(sdist)], env=variables(wheel, folder), check=True)
    return DIST / f"{sdist.name.removesuffix('.tar.gz')}-{wheel.tag}.whl"


def link_multiarch(include: Path, folder: Path) -> Path:
    """Returns a folder with Debian's machine-dependent headers of Python and no others.

    Its pyconfig.h asks for <x86_64-linux-gnu/python3.11/pyconfig.h>. The folder that has it,
    /usr/include, has also the headers of the system's C library, which is not the one aimed at.
    """
    link = folder / "include" / include.parent.name / include.name
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(include)
    return folder / "include"


def variables(wheel: Wheel, folder: Path) -> dict[str, str]:
    """Returns the environment of a build: the compiler, and the exact versions of its tools."""
    import ziglang

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = folder / "pins.txt"
    pins.write_text("\n".join(project["optional-dependencies"]["wheel"]) + "\n", encoding="utf-8")
    glibc = ".".join(map(str, archive_rules.GLIBC))
    chosen = {
        "GRAMARY_ZIG": str(Path(ziglang.__file__).parent / "zig"),
        "GRAMARY_ZIG_TARGET": f"{wheel.machine}-linux-gnu.{glibc}",
        "PIP_CONSTRAINT": str(pins),
    }
    if wheel.python.multiarch_include:
        include = link_multiarch(Path(wheel.python.multiarch_include), folder)
        chosen["GRAMARY_ZIG_INCLUDE"] = str(include)
    if wheel.machine != platform.machine() and not wheel.is_stable:
        chosen["SETUPTOOLS_EXT_SUFFIX"] = f".cpython-311-{wheel.machine}-linux-gnu.so"
    return os.environ | chosen


def audit(path: Path, wheel: Wheel) -> Iterator[str]:
    """Yields what other programs find: auditwheel about the tag, abi3audit about the stable ABI."""
    bin_folder = Path(sys.executable).parent
    commands = [[str(bin_folder / "auditwheel"), "show", "--disable-isa-ext-check", str(path)]]
    if wheel.is_stable:
        commands.append([str(bin_folder / "abi3audit"), "--strict", "--summary", str(path)])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.stdout + done.stderr, end="", file=sys.stderr)
        if done.returncode != 0:
            yield f"{Path(command[0]).name} refuses {path.name}"


def main() -> None:
    """Makes what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tools.make_wheel", description=__doc__)
    parser.add_argument("--machine", choices=MACHINES, default=platform.machine())
    parser.add_argument("--pythons", nargs="*", default=[], help="default: those of this machine")
    options = parser.parse_args()
    wheels = plan(interpreters.find(options.pythons), options.machine)
    DIST.mkdir(exist_ok=True)
    package = archive_rules.list_package(ROOT)
    native = [path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*.*")]
    sdist = make_sdist()
    faults = list(archive_rules.faults_of_sdist(sdist, package, native))
    made = [sdist]
    for wheel in wheels:
        with tempfile.TemporaryDirectory() as folder:
            made.append(make_wheel(wheel, sdist, Path(folder)))
        faults += archive_rules.faults_of_wheel(made[-1], wheel.tag, package)
        faults += audit(made[-1], wheel)
    print(*(f"made {path.relative_to(ROOT)}" for path in made), sep="\n")
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
