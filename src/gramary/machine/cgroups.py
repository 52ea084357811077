"""The control groups that bound this process, by controller, in either version of the hierarchy.

Sources: cgroups(7), proc_pid_mountinfo(5), and the kernel's admin-guide pages cgroup-v1/memory and
cgroup-v2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gramary.process.descriptor_limit import shortage_in, too_few

# A v1 group without a limit reports the largest page-aligned int64.
_UNLIMITED = 1 << 62


@dataclasses.dataclass(frozen=True)
class _MemoryFiles:
    """What a version of the memory controller calls what is needed.

    Attributes:
        limits: files with a limit each; the group is stopped, or slowed down, at any of them.
        used: the file with the bytes charged to the group and the groups below it.
        inherited: name in memory.stat of the least limit of the groups above, seen from below.
        cached: names in memory.stat of bytes of files in the page cache.
        unclean: names of those among them that must be written first.
    """

    limits: tuple[str, ...]
    used: str
    inherited: str
    cached: tuple[str, ...]
    unclean: tuple[str, ...]


_V2 = _MemoryFiles(
    limits=("memory.max", "memory.high"),
    used="memory.current",
    inherited="",
    cached=("inactive_file", "active_file"),
    unclean=("file_dirty", "file_writeback"),
)
_V1 = _MemoryFiles(
    limits=("memory.limit_in_bytes",),
    used="memory.usage_in_bytes",
    inherited="hierarchical_memory_limit",
    cached=("total_inactive_file", "total_active_file"),
    unclean=("total_dirty", "total_writeback"),
)


def memory_room(root: Path) -> int | None:
    """Returns the least room of the memory cgroups from the process up, None without a limit.

    Args:
        root: folder that holds proc/ and what is mounted.
    """
    rooms = [_room_of(folder) for folder in cgroups_of("memory", root)]
    return min((room for room in rooms if room is not None), default=None)


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


def _room_of(folder: Path) -> int | None:
    """Returns the bytes a memory cgroup still has, None without a limit (either version).

    Clean pages of files are charged to the group and given up when memory is short, whether they
    were used lately or not, so they count as room, as they do in MemAvailable.
    """
    names = _V2 if (folder / _V2.used).exists() else _V1
    fields = (line.partition(" ") for line in _lines(folder / "memory.stat"))
    stat = {name: int(value) for name, _, value in fields if value.isdigit()}
    # "max" and the like are no numbers: no limit.
    texts = [_word(folder / name) for name in names.limits]
    limits = [int(text) for text in texts if text.isdigit()]
    limits += [stat[names.inherited]] if names.inherited in stat else []
    limits = [limit for limit in limits if limit < _UNLIMITED]
    used = _word(folder / names.used)
    if not limits or not used.isdigit():
        return None
    cached = sum(stat.get(name, 0) for name in names.cached)
    clean = max(0, cached - sum(stat.get(name, 0) for name in names.unclean))
    return max(0, min(limits) - max(0, int(used) - clean))


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
    except OSError as error:
        # The file is there all the same.
        if code := shortage_in(error):
            raise too_few("look at this machine", code) from error
        return []


def _word(path: Path) -> str:
    """Returns a file's only word, "" where it has none or cannot be read."""
    return "".join(_lines(path)).strip()


__all__ = ["cgroups_of", "memory_room"]
