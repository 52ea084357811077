"""What a machine has free, read from prepared proc and sys trees."""

from pathlib import Path

import pytest

from gramary.errors import UnsupportedError
from gramary.machine.memory import (
    HostRoom,
    HugePages,
    numa_node_of_pci,
    read_host_room,
    read_huge_pages,
    read_numa_nodes,
    usable_cpus,
)
from gramary.settings import Settings

GIB = 1 << 30
NO_LOCK_CAPABILITY = "CapEff:\t0000000000000000\nVmLck:\t     512 kB\n"
LOCK_CAPABILITY = "CapEff:\t0000000000004000\n"


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Writes a tree of small files and returns its root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine_files() -> dict[str, str]:
    """Returns a machine of 8 GiB available, 1 MiB lockable, without a memory cgroup."""
    return {
        "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n",
        "proc/self/status": NO_LOCK_CAPABILITY,
        "proc/self/limits": "Max locked memory         1048576      2097152      bytes\n",
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "",
    }


CGROUP_V2 = {
    "proc/self/cgroup": "0::/box/inner\n",
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/box/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/box/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/box/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
    "sys/fs/cgroup/box/inner/memory.max": "max\n",
    "sys/fs/cgroup/box/inner/memory.current": f"{GIB}\n",
}
CGROUP_V1 = {
    "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu:/docker/abc\n",
    # A container sees only its own part of the hierarchy.
    "proc/self/mountinfo": (
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    ),
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{6 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{5 * GIB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {2 * GIB}\ninactive_file 1\n",
}


def test_available_and_lock_room(tmp_path: Path) -> None:
    room = read_host_room(Settings(), write_tree(tmp_path, machine_files()))
    assert room.available_bytes == 8 * GIB
    assert room.cgroup_bytes is None
    assert room.lock_bytes == 1048576 - 512 * 1024
    assert room.free_bytes(locking=False) == 8 * GIB
    assert room.free_bytes(locking=True) == 512 * 1024


@pytest.mark.parametrize(
    ("status", "limits"),
    [(LOCK_CAPABILITY, "Max locked memory 0 0 bytes"),
     (NO_LOCK_CAPABILITY, "Max locked memory unlimited unlimited bytes"),
     (NO_LOCK_CAPABILITY, "Max open files 1 1 files")],
)  # fmt: skip
def test_no_lock_limit(tmp_path: Path, status: str, limits: str) -> None:
    files = machine_files() | {"proc/self/status": status, "proc/self/limits": limits}
    assert read_host_room(Settings(), write_tree(tmp_path, files)).lock_bytes is None


def test_lock_room_is_never_negative(tmp_path: Path) -> None:
    status = "CapEff:\t0\nVmLck:\t 9999 kB\n"
    files = machine_files() | {"proc/self/status": status}
    assert read_host_room(Settings(), write_tree(tmp_path, files)).lock_bytes == 0


def test_cgroup_v2_counts_ancestors_and_pages_of_files(tmp_path: Path) -> None:
    room = read_host_room(Settings(), write_tree(tmp_path, machine_files() | CGROUP_V2))
    assert room.cgroup_bytes == 2 * GIB + 7
    assert room.free_bytes(locking=False) == 2 * GIB + 7


def test_cgroup_v1_inside_a_container(tmp_path: Path) -> None:
    room = read_host_room(Settings(), write_tree(tmp_path, machine_files() | CGROUP_V1))
    assert room.cgroup_bytes == 3 * GIB


def test_cgroup_v1_without_a_limit(tmp_path: Path) -> None:
    files = machine_files() | CGROUP_V1
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712\n"
    assert read_host_room(Settings(), write_tree(tmp_path, files)).cgroup_bytes is None


def test_full_cgroup_has_no_room(tmp_path: Path) -> None:
    files = machine_files() | CGROUP_V2
    files["sys/fs/cgroup/box/memory.current"] = f"{9 * GIB}\n"
    assert read_host_room(Settings(), write_tree(tmp_path, files)).cgroup_bytes == 0


def test_ranks_share_the_room(tmp_path: Path) -> None:
    root = write_tree(tmp_path, machine_files())
    room = read_host_room(Settings.from_env({"LOCAL_WORLD_SIZE": "4"}), root)
    assert room.free_bytes(locking=False) == 2 * GIB
    assert "shared by 4 ranks" in room.describe(locking=False)


def test_a_set_limit_overrides_the_machine(tmp_path: Path) -> None:
    """Memory that grows on demand reads too small; the lock limit is overridden too."""
    room = read_host_room(Settings(memory_limit_bytes=64 * GIB), write_tree(tmp_path, {}))
    assert room.free_bytes(locking=True) == 64 * GIB
    assert room.bounds(locking=True) == {"memory_limit_bytes": 64 * GIB}


def test_unknown_memory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="MemAvailable; set GRAMARY_MEMORY_LIMIT_BYTES"):
        read_host_room(Settings(), tmp_path)


def test_describe_names_every_bound_in_force() -> None:
    room = HostRoom(available_bytes=3000, cgroup_bytes=2000, lock_bytes=1000)
    text = room.describe(locking=True)
    assert text == "available memory 3,000 B, cgroup room 2,000 B, lock room 1,000 B"
    assert "lock" not in room.describe(locking=False)


def test_huge_pages(tmp_path: Path) -> None:
    transparent = "sys/kernel/mm/transparent_hugepage"
    root = write_tree(tmp_path, {
        "proc/meminfo": "HugePages_Free: 10\nHugePages_Rsvd: 3\nHugepagesize: 2048 kB\n",
        f"{transparent}/enabled": "always [madvise] never\n",
        f"{transparent}/shmem_enabled": "always within_size [advise] never deny force\n",
    })  # fmt: skip
    assert read_huge_pages(root) == HugePages(2 << 20, 7 * (2 << 20), "madvise", "advise")


def test_no_huge_pages(tmp_path: Path) -> None:
    assert read_huge_pages(tmp_path) == HugePages(0, 0, "never", "never")


@pytest.mark.parametrize(
    ("text", "nodes"), [("0", (0,)), ("0-1", (0, 1)), ("0-1,3", (0, 1, 3)), ("", (0,))]
)
def test_numa_nodes(tmp_path: Path, text: str, nodes: tuple[int, ...]) -> None:
    write_tree(tmp_path, {"sys/devices/system/node/has_memory": text})
    assert read_numa_nodes(tmp_path) == nodes


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", None), ("", None)])
def test_numa_node_of_pci(tmp_path: Path, text: str, node: int | None) -> None:
    write_tree(tmp_path, {"sys/bus/pci/devices/0000:1b:00.0/numa_node": text})
    assert numa_node_of_pci("0000:1B:00.0", tmp_path) == node
    assert numa_node_of_pci("ffff:00:00.0", tmp_path) is None


def test_this_machine_answers() -> None:
    assert read_host_room(Settings()).free_bytes(locking=False) > 0
    assert read_numa_nodes()


@pytest.mark.parametrize(
    ("files", "num_cpus"),
    [
        ({}, 8),
        (CGROUP_V2 | {"sys/fs/cgroup/box/cpu.max": "350000 100000\n"}, 3),
        (CGROUP_V2 | {"sys/fs/cgroup/box/inner/cpu.max": "20000 100000\n"}, 1),
        (CGROUP_V2 | {"sys/fs/cgroup/box/cpu.max": "max 100000\n"}, 8),
        (
            CGROUP_V1
            | {
                "proc/self/mountinfo": "35 31 0:32 /docker/abc /cg rw - cgroup cgroup rw,cpu\n",
                "cg/cpu.cfs_quota_us": "200000\n",
                "cg/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
    ],
)
def test_usable_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], num_cpus: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(8)))
    assert usable_cpus(write_tree(tmp_path, machine_files() | files)) == num_cpus
