"""The environments, in the order in which they run."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.environments.checkout import find_python, make_checkout
from tools.environments.environment import Environment, NotHereError, Place

TMPFS = Path("/dev/shm")
TMPFS_BYTES = 4 << 30


def _plain(_folder: Path) -> Place:
    return Place()


def _confined(option: str, _folder: Path) -> Place:
    place = Place(confinement=[option])
    if why := _why_not(place):
        raise NotHereError(why)
    return place


def _capped(level: str, torch_level: str, _folder: Path) -> Place:
    # torch, too, as on such a CPU.
    variables = {"GRAMARY_INSTRUCTIONS": level, "ATEN_CPU_CAPABILITY": torch_level}
    return Place(variables=variables)


def _on_tmpfs(_folder: Path) -> Place:
    if not os.access(TMPFS, os.W_OK):
        raise NotHereError(f"{TMPFS} cannot be written to")
    free = shutil.disk_usage(TMPFS).free
    if free < TMPFS_BYTES:
        raise NotHereError(
            f"{TMPFS} has {free:,} bytes free, and temporary files take {TMPFS_BYTES:,}"
        )
    folder = TMPFS / f"gramary-environment-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return Place(variables={"TMPDIR": str(folder)})


def _as_ordinary_user(folder: Path) -> Place:
    """Another user, or one of a user namespace where another cannot reach this tree."""
    if os.geteuid() != 0:
        raise NotHereError("the plain environment is an ordinary user's already")
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    variables = {"HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    variables["HYPOTHESIS_STORAGE_DIRECTORY"] = str(home / "hypothesis")
    refusals = []
    for option in ("--as-nobody", "--without-rights"):
        place = Place(confinement=[option], variables=variables)
        if option == "--as-nobody":
            home.chmod(0o777)
        why = _why_not(place)
        if why is None:
            return place
        refusals.append(f"{option}: {why}")
    raise NotHereError("; ".join(refusals))


def _why_not(place: Place) -> str | None:
    """Returns why a place does not even import the package, or None."""
    probe = subprocess.run(
        place.command(["-c", "import gramary"]), cwd=place.tree, env=os.environ | place.variables,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return None if probe.returncode == 0 else probe.stderr.strip().splitlines()[-1]


def _of_python(version: str, folder: Path) -> Place:
    tree = folder / "gramary"
    return Place(tree, make_checkout(tree, find_python(version)))


def _with_spaces(folder: Path) -> Place:
    tree = folder / "a path with spaces" / "gramary's tree"
    return Place(tree, make_checkout(tree, getattr(sys, "_base_executable", sys.executable)))


_with = functools.partial

ENVIRONMENTS = (
    Environment("plain", "this machine as it is", _plain),
    Environment("no_io_uring", "io_uring denied by seccomp", _with(_confined, "--no-io-uring")),
    Environment("tmpfs", "temporary files on a tmpfs", _on_tmpfs),
    Environment("ordinary_user", "a user without rights", _as_ordinary_user),
    Environment("one_cpu", "one usable CPU", _with(_confined, "--one-cpu"), num_processes=1),
    Environment("avx2", "AVX2 at most", _with(_capped, "avx2", "avx2")),
    Environment("scalar", "no vector instructions", _with(_capped, "scalar", "default")),
    Environment("no_network", "no network but loopback", _with(_confined, "--no-network")),
    Environment("spaces", "a checkout whose path has spaces and a quote", _with_spaces),
    Environment("python3.12", "Python 3.12", _with(_of_python, "3.12")),
    Environment("python3.13", "Python 3.13", _with(_of_python, "3.13")),
)
