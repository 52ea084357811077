"""What this machine, its kernel and its packages allow: each probe asks the thing itself."""

from __future__ import annotations

import dataclasses
import errno
import importlib.metadata
import mmap
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gramary.cli.thread_room import count_startable, num_wanted
from gramary.errors import ArgumentError, GramaryError
from gramary.machine.memory import read_host_room, read_huge_pages, read_numa_nodes
from gramary.placement.grammar import format_bytes
from gramary.process.descriptor_limit import REMEDY, SHORTAGES
from gramary.settings import Settings

if TYPE_CHECKING:
    import torch

YES, NO, UNKNOWN, FACT = "yes", "no", "unknown", ""

PACKAGES = {
    "numpy": "",
    "safetensors": "",
    "triton": "GPU kernels need it: pip install 'gramary[cuda]'",
    "transformers": "gramary.integrations.transformers and `generate` need it: "
    "pip install 'gramary[transformers]'",
    "cuda-bindings": "host rows that the GPU reads, and requests inside CUDA graphs, need it: "
    "pip install 'gramary[cuda]'",
    "prometheus-client": "metrics need it: pip install 'gramary[metrics]'",
}

_IO_URING_SWITCH = Path("/proc/sys/kernel/io_uring_disabled")
_DIRECT_BLOCK_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        section: heading it stands under.
        name: what was looked at.
        answer: "yes", "no" or "unknown"; empty for a plain fact.
        detail: what was found, with numbers.
        remedy: what to do about a no or an unknown; empty where nothing need be done.
    """

    section: str
    name: str
    answer: str
    detail: str
    remedy: str = ""


def probe_versions() -> Iterator[Finding]:
    """Yields the versions of gramary, Python, torch and the optional packages."""
    import torch

    import gramary

    section = "versions"
    yield Finding(section, "gramary", FACT, gramary.__version__)
    yield Finding(section, "Python", FACT, platform.python_version())
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield Finding(section, "torch", FACT, f"{torch.__version__} ({build})")
    for package, remedy in PACKAGES.items():
        try:
            yield Finding(section, package, YES, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(section, package, NO, "not installed", remedy)


def probe_build() -> Iterator[Finding]:
    """Yields the compiler that a build would use, and what the core was built with."""
    from gramary.native import _core

    section = "build"
    found = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]
    if found:
        yield Finding(section, "C++ compiler", YES, _first_line([found[0], "--version"]))
    else:
        remedy = "only a build from source needs one: apt install g++, or dnf install gcc-c++"
        yield Finding(section, "C++ compiler", NO, "none on the PATH", remedy)
    levels = ("scalar", "AVX2", "AVX-512")
    level = levels[_core.detected_simd_level()]
    yield Finding(section, "CPU instructions", FACT, f"{platform.machine()}, {level} in use")
    threads = _core.default_num_threads()
    cpus = len(os.sched_getaffinity(0))
    yield Finding(section, "CPU threads", FACT, f"{threads} of {cpus} usable CPUs")
    yield _describe_thread_room(section)


def _describe_thread_room(section: str) -> Finding:
    wanted = num_wanted()
    startable = count_startable(wanted)
    if startable == wanted:
        return Finding(section, "threads", YES, f"{wanted} or more can be started")
    remedy = "raise the limit on processes (ulimit -u, the cgroup's pids.max)"
    detail = f"only {startable} more can be started; a command may want {wanted}"
    return Finding(section, "threads", NO, detail, remedy)


def probe_memory(settings: Settings) -> Iterator[Finding]:
    """Yields available memory, the cgroup's and the lock limit's room, and page sizes."""
    section = "memory"
    room = read_host_room(settings)
    yield Finding(section, "available memory", FACT, format_bytes(room.available_bytes))
    cgroup = "no limit" if room.cgroup_bytes is None else f"{format_bytes(room.cgroup_bytes)} left"
    yield Finding(section, "cgroup", FACT, cgroup)
    if room.limit_bytes is not None:
        limit = format_bytes(room.limit_bytes)
        yield Finding(section, "GRAMARY_MEMORY_LIMIT_BYTES", FACT, f"{limit}, replaces the above")
    if room.lock_bytes is None:
        yield Finding(section, "locked memory", YES, "no limit")
    else:
        remedy = (
            "a host tier that a GPU reads must be locked: `ulimit -l unlimited`, or in containers "
            "--ulimit memlock=-1"
        )
        detail = f"{format_bytes(room.lock_bytes)} may be locked"
        answer = YES if room.lock_bytes >= room.available_bytes else NO
        yield Finding(section, "locked memory", answer, detail, remedy if answer == NO else "")
    pages = read_huge_pages()
    detail = (
        f"{format_bytes(pages.page_bytes)} pages; shared memory: {pages.shared}; "
        f"{format_bytes(pages.free_bytes)} reserved and free"
    )
    yield Finding(section, "huge pages", FACT, detail)
    nodes = read_numa_nodes()
    yield Finding(section, "NUMA nodes", FACT, ", ".join(map(str, nodes)) or "not reported")


def probe_reading(model: Path | None) -> Iterator[Finding]:
    """Yields how rows can be read from files: io_uring, and direct reads of a model.

    Args:
        model: its folder, or a table's file; None leaves direct reads unknown.

    Raises:
        ArgumentError: there is no such file or folder, or it has no regular file.
    """
    section = "reading from disk"
    yield Finding(section, "positioned reads", YES, "always")
    file = None if model is None else find_largest_file(model)
    yield _describe_io_uring(section, *try_reading_by_ring(file))
    if file is None:
        remedy = "name a model: gramary doctor --model DIR"
        yield Finding(section, "direct reads", UNKNOWN, "depends on the file system", remedy)
        return
    code = try_direct_read(file)
    if code == 0:
        yield Finding(section, "direct reads", YES, f"O_DIRECT works on {file.name}")
    elif code in SHORTAGES:
        detail = f"not tried on {file.name}: {os.strerror(code)}"
        yield Finding(section, "direct reads", UNKNOWN, detail, REMEDY)
    else:
        detail = f"O_DIRECT on {file.name}: {os.strerror(code)}; the page cache is used"
        remedy = "for cold, large batches put the files on ext4, xfs or another local file system"
        yield Finding(section, "direct reads", NO, detail, remedy)


def _describe_io_uring(section: str, code: int, told: str) -> Finding:
    if code == 0:
        detail = "; ".join(filter(None, ("the kernel allows it", told)))
        return Finding(section, "io_uring", YES, detail)
    remedies = {
        errno.ENOSYS: "the kernel is too old, or built without it: 5.6 or newer is needed; some "
        "containers hide it: allow the three calls io_uring_* in the seccomp profile",
        errno.EPERM: _name_io_uring_ban(),
        errno.EACCES: "a security module forbids it: allow io_uring in its policy",
        errno.ENOMEM: "raise the limit of locked memory: `ulimit -l unlimited`, or in containers "
        "--ulimit memlock=-1",
        errno.EMFILE: "raise the limit of open files: `ulimit -n 65536`",
        errno.EINVAL: "this kernel, or what stands in for one, cannot read files this way: 5.6 or "
        "newer is needed",
    }
    detail = f"{told}; pread is used"
    return Finding(section, "io_uring", NO, detail, remedies.get(code, "pread serves as well"))


def _name_io_uring_ban() -> str:
    """Returns how to lift what forbids io_uring: the kernel's own switch, or else a filter."""
    try:
        switch = _IO_URING_SWITCH.read_text().strip()
    except OSError:
        switch = "0"
    if switch != "0":
        return (
            f"kernel.io_uring_disabled is {switch}: on the host, sysctl kernel.io_uring_disabled=0"
        )
    return "allow the three calls io_uring_* in the container's seccomp profile"


def try_reading_by_ring(file: Path | None) -> tuple[int, str]:
    """Makes a ring as the reader does; for a file of gramary itself where none can be read.

    Returns:
        0 and what is not granted although rows can be read this way, or the error number and what
        failed, in words.
    """
    from gramary.native import _core
    from gramary.native.raw_disk import try_io_uring

    is_readable = file is not None and os.access(file, os.R_OK)
    return try_io_uring(str(file) if is_readable else _core.__file__)


def try_direct_read(file: Path) -> int:
    """Reads the first block of a file past the page cache; returns 0, or an error number."""
    try:
        # O_NONBLOCK: a named pipe that took the name is not waited for.
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_NONBLOCK)
    except OSError as error:
        return error.errno or errno.EIO
    try:
        with mmap.mmap(-1, _DIRECT_BLOCK_BYTES) as block:
            os.preadv(descriptor, [block], 0)
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(descriptor)
    return 0


def probe_gpus(settings: Settings) -> Iterator[Finding]:
    """Yields each GPU with its free memory, and what of CUDA gramary can use."""
    import torch

    section = "GPUs"
    if not torch.cuda.is_available():
        built = "torch finds none" if torch.version.cuda else "this torch is a CPU build"
        remedy = "for rows on a GPU install a driver and a CUDA build of torch"
        yield Finding(section, "CUDA", NO, built, remedy)
        return
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        detail = (
            f"{facts.name}, capability {facts.major}.{facts.minor}, "
            f"{format_bytes(free)} of {format_bytes(total)} free"
        )
        yield Finding(section, f"cuda:{index}", YES, detail)
        yield describe_waiting(section, torch.device("cuda", index))
    if settings.pin_host:
        yield Finding(section, "reads host rows", *_describe_registration())


def describe_waiting(section: str, device: torch.device) -> Finding:
    """Returns how a connector's requests wait on a device's streams, inside CUDA graphs too."""
    name = f"stream waits, {device}"
    try:
        from gramary.offload.cuda.streams import why_no_memory_operations

        why_not = why_no_memory_operations(device)
    except GramaryError as error:
        return Finding(section, name, NO, str(error), PACKAGES["cuda-bindings"])
    if why_not is None:
        return Finding(section, name, YES, "stream memory operations")
    remedy = "a newer driver has stream memory operations; until then a tiny kernel waits"
    return Finding(section, name, NO, why_not, remedy)


def _describe_registration() -> tuple[str, str, str]:
    try:
        importlib.metadata.version("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        return NO, "cuda-bindings is missing", PACKAGES["cuda-bindings"]
    return YES, "cuda-bindings is there", ""


def probe_placements(settings: Settings) -> Iterator[Finding]:
    """Yields what each tier of a placement can hold here."""
    import torch

    section = "placements"
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        yield Finding(section, "device", YES, f"{format_bytes(free)} free on the current GPU")
    else:
        yield Finding(section, "device", NO, "no GPU", "use host, disk, or host=SIZE,disk")
    try:
        room = read_host_room(settings)
    except GramaryError as error:
        yield Finding(section, "host", UNKNOWN, str(error), "set GRAMARY_MEMORY_LIMIT_BYTES")
    else:
        locking = torch.cuda.is_available() and settings.pin_host
        free = room.free_bytes(locking=locking)
        yield Finding(section, "host", YES, f"up to {format_bytes(free)}")
    yield Finding(section, "disk", YES, "any table; rows are read in place from its files")
    yield _describe_sharing(section, Path(settings.share_folder))


def _describe_sharing(section: str, folder: Path) -> Finding:
    try:
        room = os.statvfs(folder)
    except OSError as error:
        detail = f"{folder}: {error.strerror}"
        remedy = "mount a tmpfs there; only share= needs it"
        return Finding(section, "share=NAME", NO, detail, remedy)
    free = format_bytes(room.f_bavail * room.f_frsize)
    return Finding(section, "share=NAME", YES, f"{free} free in {folder}")


def find_largest_file(path: Path) -> Path:
    """Returns a file, or the largest one in a folder.

    Raises:
        ArgumentError: there is no such file or folder, or it has no regular file.
        OSError: the folder cannot be listed.
    """
    if not path.exists():
        raise ArgumentError(f"--model: {path} does not exist")
    files = list(path.iterdir()) if path.is_dir() else [path]
    sizes = {file: size for file in files if (size := _size_of(file)) is not None}
    if not sizes:
        raise ArgumentError(
            f"--model: expected a model's folder or a table's file, got {path}, which holds no "
            "file to read; check the name, or download the model first"
        )
    return max(sizes, key=sizes.__getitem__)


def _size_of(file: Path) -> int | None:
    """Returns the bytes of a regular file, None where it is something else, or gone."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        return f"{command[0]} ({error.strerror})"
    return (done.stdout or done.stderr).partition("\n")[0] or command[0]
