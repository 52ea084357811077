"""The control groups that bound this process, by controller, in either version of the hierarchy.

Sources: cgroups(7), proc_pid_mountinfo(5).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cgroups_of(controller: str, root: Path) -> Iterator[Path]:
    """Yields the folders of a controller's groups that hold this process, innermost first.

    Args:
        controller: "memory" or "cpu".
        root: folder that holds proc/ and what is mounted.
    """
    groups = dict(_own_groups(controller, root))
    for version, mount_root, mount_point in _mounts(controller, root):
        if version not in groups:
            continue
        own, base = PurePosixPath(groups[version]), PurePosixPath(mount_root)
        # In a container the mount may show only a part of the hierarchy, or be named otherwise.
        below = own.relative_to(base) if own.is_relative_to(base) else PurePosixPath()
        top = root / mount_point.lstrip("/")
        for part in (below, *below.parents):
            yield top / part


def _own_groups(controller: str, root: Path) -> Iterator[tuple[int, str]]:
    """Yields (cgroup version, path) of the groups that hold this process."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield 2, path
        elif controller in controllers.split(","):
            yield 1, path


def _mounts(controller: str, root: Path) -> Iterator[tuple[int, str, str]]:
    """Yields (cgroup version, root within the hierarchy, mount point) of hierarchies."""
    for line in _lines(root / "proc/self/mountinfo"):
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.partition(" ")
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split()[-1].split(",")):
            _, _, _, mount_root, mount_point, *_ = fields.split()
            yield (2 if kind == "cgroup2" else 1), mount_root, mount_point


def _lines(path: Path) -> list[str]:
    """Returns a file's lines, none where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


__all__ = ["cgroups_of"]
