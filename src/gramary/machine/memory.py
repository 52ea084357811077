"""What this machine really has free: memory, CPUs, cgroup room, lock room, huge pages, NUMA.

Everything is read from files below a root folder ("/" on a machine, a temporary folder in tests).
Sources: proc_meminfo(5), proc_pid_limits(5), proc_pid_status(5), proc_pid_mountinfo(5),
cgroups(7), and the kernel's admin-guide pages cgroup-v1/memory, cgroup-v2, mm/hugetlbpage and
mm/transhuge.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from gramary.errors import CapacityError, UnsupportedError
from gramary.machine.cgroups import cgroups_of, memory_room
from gramary.process.descriptor_limit import shortage_in, too_few
from gramary.settings import Settings

ROOT = Path("/")

# include/uapi/linux/capability.h
_CAP_IPC_LOCK = 14


@dataclasses.dataclass(frozen=True)
class HostRoom:
    """Host memory a process may still take, by each of the bounds that hold for it.

    Attributes:
        available_bytes: MemAvailable of the machine.
        cgroup_bytes: room left in the tightest memory cgroup above the process, clean page cache
            included; None: no limit.
        lock_bytes: bytes the process may still lock; None: no limit.
        local_ranks: processes on this machine that share the memory, at least 1.
        limit_bytes: `settings.memory_limit_bytes`: what to plan with instead of the other bounds.
    """

    available_bytes: int
    cgroup_bytes: int | None = None
    lock_bytes: int | None = None
    local_ranks: int = 1
    limit_bytes: int | None = None

    def bounds(self, *, locking: bool) -> dict[str, int]:
        """Returns the bounds in force, by name; `locking` adds the lock limit.

        Args:
            locking: whether the memory is to be locked (registered with CUDA).
        """
        if self.limit_bytes is not None:
            return {"memory_limit_bytes": self.limit_bytes}
        bounds = {"available memory": self.available_bytes}
        if self.cgroup_bytes is not None:
            bounds["cgroup room"] = self.cgroup_bytes
        if locking and self.lock_bytes is not None:
            bounds["lock room"] = self.lock_bytes
        return bounds

    def free_bytes(self, *, locking: bool) -> int:
        """Returns the bytes one rank may take: the least bound, divided by the local ranks."""
        return min(self.bounds(locking=locking).values()) // self.local_ranks

    def describe(self, *, locking: bool) -> str:
        """Returns the bounds in one line, for messages and reports."""
        bounds = ", ".join(
            f"{name} {size:,} B" for name, size in self.bounds(locking=locking).items()
        )
        return bounds + (f", shared by {self.local_ranks} ranks" if self.local_ranks > 1 else "")


def require_room(what: str, num_bytes: int, room: HostRoom, *, locking: bool, remedy: str) -> None:
    """Raises CapacityError where less memory is free than needed, before anything is taken.

    Args:
        what: what needs the memory, in the plural.
        num_bytes: bytes that it needs.
        room: what is free.
        locking: whether the memory is to be locked (registered with CUDA).
        remedy: what to do so that less is needed.
    """
    free = room.free_bytes(locking=locking)
    if num_bytes > free:
        raise CapacityError(
            f"{what} need {num_bytes:,} bytes, but only {free:,} may be taken "
            f"({room.describe(locking=locking)}); {remedy}, or set GRAMARY_MEMORY_LIMIT_BYTES "
            "where the machine says too little"
        )


@dataclasses.dataclass(frozen=True)
class HugePages:
    """Huge pages of a machine.

    Attributes:
        page_bytes: size of the default huge page, 0 where there is none.
        free_bytes: unreserved bytes in the pool of that size.
        anonymous: "always", "madvise" or "never": huge pages for private memory.
        shared: the same for shared memory and memfd ("always", "within_size", "advise", "never",
            "deny" or "force").
    """

    page_bytes: int
    free_bytes: int
    anonymous: str
    shared: str


def read_host_room(settings: Settings, root: Path = ROOT) -> HostRoom:
    """Returns the memory this process may still take.

    Args:
        settings: `memory_limit_bytes` and `local_ranks` are used.
        root: folder that holds proc/ and sys/.

    Raises:
        UnsupportedError: the machine does not say what is available, and no limit is set.
    """
    available = _meminfo(root).get("MemAvailable")
    if available is None:
        if settings.memory_limit_bytes is None:
            raise UnsupportedError(
                f"{root / 'proc/meminfo'} has no MemAvailable; set GRAMARY_MEMORY_LIMIT_BYTES"
            )
        available = 0
    return HostRoom(
        available_bytes=available,
        cgroup_bytes=memory_room(root),
        lock_bytes=_lock_room(root),
        local_ranks=settings.local_ranks,
        limit_bytes=settings.memory_limit_bytes,
    )


def usable_cpus(root: Path = ROOT) -> int:
    """Returns how many CPUs this process may keep busy: its affinity's, or its cgroups' quota."""
    num_cpus = len(os.sched_getaffinity(0))
    quotas = [_quota_of(folder) for folder in cgroups_of("cpu", root)]
    return max(1, min([num_cpus, *(int(quota) for quota in quotas if quota > 0)]))


def read_huge_pages(root: Path = ROOT) -> HugePages:
    """Returns what huge pages the machine offers; absent files read as "never" and 0."""
    info = _meminfo(root)
    transparent = root / "sys/kernel/mm/transparent_hugepage"
    page_bytes = info.get("Hugepagesize", 0)
    # HugePages_* are counts; reserved pages are free but promised to somebody.
    free_pages = info.get("HugePages_Free", 0) - info.get("HugePages_Rsvd", 0)
    return HugePages(
        page_bytes=page_bytes,
        free_bytes=max(0, free_pages) * page_bytes,
        anonymous=_chosen(transparent / "enabled"),
        shared=_chosen(transparent / "shmem_enabled"),
    )


def read_numa_nodes(root: Path = ROOT) -> tuple[int, ...]:
    """Returns the NUMA nodes that have memory, in order; (0,) where the machine does not say."""
    text = _read(root / "sys/devices/system/node/has_memory")
    return tuple(_numbers(text)) if text else (0,)


def numa_node_of_pci(address: str, root: Path = ROOT) -> int | None:
    """Returns the NUMA node of the PCI device at `address`, None where it is not known.

    Args:
        address: domain:bus:device.function in hexadecimal, such as "0000:1b:00.0".
        root: folder that holds sys/.
    """
    text = _read(root / "sys/bus/pci/devices" / address.lower() / "numa_node")
    return int(text) if text and int(text) >= 0 else None


def _read(path: Path) -> str:
    """Returns a file's text without surrounding blanks, "" where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError as error:
        # The file is there all the same.
        if code := shortage_in(error):
            raise too_few("look at this machine", code) from error
        return ""


def _meminfo(root: Path) -> dict[str, int]:
    """Returns the fields of /proc/meminfo, those with a unit in bytes."""
    fields = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        value, _, unit = rest.strip().partition(" ")
        if value.isdigit():
            fields[name] = int(value) * (1024 if unit == "kB" else 1)
    return fields


def _status(root: Path) -> dict[str, str]:
    lines = _read(root / "proc/self/status").splitlines()
    return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}


def _lock_room(root: Path) -> int | None:
    """Returns the bytes that may still be locked, None without a limit."""
    status = _status(root)
    if int(status.get("CapEff", "0"), 16) >> _CAP_IPC_LOCK & 1:
        return None
    for line in _read(root / "proc/self/limits").splitlines():
        if line.startswith("Max locked memory"):
            soft = line.removeprefix("Max locked memory").split()[0]
            if soft == "unlimited":
                return None
            locked = int(status.get("VmLck", "0 kB").split()[0]) * 1024
            return max(0, int(soft) - locked)
    return None


def _quota_of(folder: Path) -> float:
    """Returns the CPUs' worth of time that a cgroup gives, 0 without a limit (either version)."""
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    if not period:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    # "max" and -1: no limit.
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else 0.0


def _chosen(path: Path) -> str:
    """Returns the word in brackets of a kernel choice file, "never" where there is none."""
    _, _, rest = _read(path).partition("[")
    return rest.partition("]")[0] or "never"


def _numbers(text: str) -> Iterator[int]:
    """Yields the numbers of a kernel list such as "0-2,5"."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
