"""Kind 7: the room that memory cgroups leave, by version, level, limit and kind of page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from offload_stage import make_spec

from gramary.machine.memory import read_host_room
from gramary.model.codecs import Codec
from gramary.placement.plan import plan_placement
from gramary.settings import Settings

MIB = 1 << 20
# Of the process's own group, from the top of what is mounted.
LEVELS = ("", "slice", "slice/pod", "slice/pod/box")


@dataclasses.dataclass(frozen=True)
class Version:
    """How one version of the controller names its files, and where they are mounted."""

    name: str
    own: str
    mount: str
    folder: str
    used: str
    limits: tuple[str, ...]
    unlimited: str
    inactive: str
    active: str
    dirty: str
    writeback: str


V2 = Version(
    "v2",
    "0::/slice/pod/box\n",
    "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup",
    "memory.current",
    ("memory.max", "memory.high"),
    "max",
    "inactive_file",
    "active_file",
    "file_dirty",
    "file_writeback",
)
V1 = Version(
    "v1",
    "4:memory:/slice/pod/box\n1:cpu:/\n",
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    "sys/fs/cgroup/memory",
    "memory.usage_in_bytes",
    ("memory.limit_in_bytes",),
    "9223372036854771712",
    "total_inactive_file",
    "total_active_file",
    "total_dirty",
    "total_writeback",
)
VERSIONS = [pytest.param(version, id=version.name) for version in (V2, V1)]
LIMITS = [
    pytest.param(version, limit, id=limit) for version in (V2, V1) for limit in version.limits
]


class Tree:
    """A machine with groups of one version, each with 100 MiB in use, no limit, no cached file."""

    def __init__(self, root: Path, version: Version) -> None:
        self.root, self.version = root, version
        self.write("proc/self/cgroup", version.own)
        self.write("proc/self/mountinfo", version.mount)
        self.write("proc/meminfo", f"MemAvailable: {4 << 20} kB\n")
        for level in LEVELS:
            self.write_group(level, version.used, 100 * MIB)
            for limit in version.limits:
                self.write_group(level, limit, version.unlimited)
            self.stat(level)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def write_group(self, level: str, name: str, value: object) -> None:
        self.write(f"{self.version.folder}/{level}/{name}", f"{value}\n")

    def stat(self, level: str, **fields: int) -> None:
        """Writes memory.stat, with numbers of the group alone beside those of all below."""
        lines = ["anon 5", "cache 7", "inactive_file_of_others 9"]
        if self.version is V1:
            lines += ["inactive_file 1", "active_file 1", "dirty 1"]
        lines += [f"{getattr(self.version, name)} {value}" for name, value in fields.items()]
        self.write_group(level, "memory.stat", "\n".join(lines))

    def room(self) -> int | None:
        return read_host_room(Settings(), self.root).cgroup_bytes


@pytest.mark.parametrize("version", VERSIONS)
def test_kind_7_without_a_limit_there_is_none(tmp_path: Path, version: Version) -> None:
    assert Tree(tmp_path, version).room() is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("version", "limit"), LIMITS)
def test_kind_7_every_limit_counts_at_every_level(
    tmp_path: Path, version: Version, limit: str, level: str
) -> None:
    tree = Tree(tmp_path, version)
    tree.write_group(level, limit, 160 * MIB)
    assert tree.room() == 60 * MIB
    # A wider one elsewhere changes nothing, a tighter one does.
    for other in LEVELS:
        if other != level:
            tree.write_group(other, limit, 500 * MIB)
    assert tree.room() == 60 * MIB
    tree.write_group(LEVELS[-1], limit, 110 * MIB)
    assert tree.room() == 10 * MIB


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("version", "limit"), LIMITS)
@pytest.mark.parametrize("pages", ["active", "inactive"])
def test_kind_7_clean_pages_of_files_are_room(
    tmp_path: Path, version: Version, limit: str, level: str, pages: str
) -> None:
    """A program that reads its files twice has them among the active pages."""
    tree = Tree(tmp_path, version)
    tree.write_group(level, limit, 100 * MIB)
    assert tree.room() == 0
    tree.stat(level, **{pages: 70 * MIB})
    assert tree.room() == 70 * MIB


@pytest.mark.parametrize("unclean", ["dirty", "writeback"])
@pytest.mark.parametrize(("version", "limit"), LIMITS)
def test_kind_7_what_has_to_be_written_first_is_no_room(
    tmp_path: Path, version: Version, limit: str, unclean: str
) -> None:
    tree = Tree(tmp_path, version)
    tree.write_group("slice", limit, 120 * MIB)
    tree.stat("slice", active=30 * MIB, inactive=20 * MIB, **{unclean: 10 * MIB})
    assert tree.room() == 60 * MIB
    tree.stat("slice", active=30 * MIB, **{unclean: 90 * MIB})
    assert tree.room() == 20 * MIB


@pytest.mark.parametrize(("version", "limit"), LIMITS)
def test_kind_7_room_is_never_negative_and_never_more_than_the_limit(
    tmp_path: Path, version: Version, limit: str
) -> None:
    tree = Tree(tmp_path, version)
    tree.write_group("slice/pod", limit, 40 * MIB)
    assert tree.room() == 0
    # Numbers of one moment and the next need not go together.
    tree.stat("slice/pod", active=900 * MIB)
    assert tree.room() == 40 * MIB


def test_kind_7_memory_high_below_memory_max_is_the_limit(tmp_path: Path) -> None:
    """A group beyond memory.high is slowed down until it is of no use."""
    tree = Tree(tmp_path, V2)
    tree.write_group("slice/pod/box", "memory.max", 900 * MIB)
    tree.write_group("slice/pod/box", "memory.high", 150 * MIB)
    assert tree.room() == 50 * MIB
    tree.write_group("slice", "memory.max", 130 * MIB)
    assert tree.room() == 30 * MIB


def test_kind_7_a_limit_above_what_a_container_sees(tmp_path: Path) -> None:
    """Version 1 tells a container of the limits above the part that is mounted in it."""
    tree = Tree(tmp_path, V1)
    tree.write(
        "proc/self/mountinfo",
        "35 31 0:32 /slice/pod /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    )
    tree.write_group("", "memory.stat", f"hierarchical_memory_limit {180 * MIB}")
    assert tree.room() == 80 * MIB
    tree.write_group("", "memory.stat", f"hierarchical_memory_limit {V1.unlimited}")
    assert tree.room() is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("version", "limit"), LIMITS)
def test_kind_7_host_auto_takes_the_page_cache(
    tmp_path: Path, version: Version, limit: str, level: str
) -> None:
    """The plan of `host=auto` holds rows where the group's memory is full of cached files."""
    tree = Tree(tmp_path, version)
    tree.write_group(level, limit, 100 * MIB)
    tree.stat(level, active=2 * MIB)
    room = read_host_room(Settings(), tmp_path)
    assert room.free_bytes(locking=False) == 2 * MIB
    spec, codec = make_spec(), Codec("bf16", 32, None)
    placement = plan_placement(
        spec,
        codec,
        "host=auto,disk",
        free_device=0,
        free_host=room.free_bytes(locking=False),
    )
    host = placement.extent("host")
    assert host is not None
    assert host.num_rows > 0
