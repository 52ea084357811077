"""What a test may need of the machine that it runs on, asked in this one place.

    @pytest.mark.needs("io_uring", "direct_io")

skips a test, with the reason, where one of them cannot be had. The running kernel, file system and
process are asked, never the package under test: where io_uring can be had and gramary does not use
it, tests fail. Instruction sets alone are asked of the core, since a setting may cap them.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib.metadata
import importlib.util
import mmap
import os
import platform
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import seccomp
import syscall_supervisor
import torch

from tools.environments import confine

_LIBC = ctypes.CDLL(None, use_errno=True)
_NOBODY = 65534
_UNREGISTER_BUFFERS = 1
# Where pytest was told to keep the tests' files, if it was.
_temporary: list[str] = []


def temporary_folder() -> str | None:
    """Returns where temporary files lie on the tests' disk; None where the system's do."""
    return _temporary[-1] if _temporary else None


def folder_open_to_all() -> Path:
    """Returns the temporary folder, or the nearest above it that every user reaches.

    With several test processes, pytest's folder for each lies in one that is closed to others.
    """
    start = Path(temporary_folder() or tempfile.gettempdir())
    for folder in (start, *start.parents):
        if all(above.stat().st_mode & 0o001 for above in (folder, *folder.parents)):
            return folder
    return start


def why_missing(name: str) -> str | None:
    """Returns why this process cannot have an ability, or None where it has it.

    Raises:
        KeyError: there is no such ability.
    """
    return ABILITIES[name]()


def with_ability(name: str) -> Any:
    """Returns a parameter that is the name of an ability, and asks for it."""
    return pytest.param(name, marks=pytest.mark.needs(name))


def with_reader(reader: str, *values: object) -> Any:
    """Returns parameters that end with a way of reading a disk tier; io_uring is asked for."""
    marks = pytest.mark.needs("io_uring") if reader == "io_uring" else ()
    return pytest.param(*values, reader, marks=marks)


# The ways of reading a disk tier, as parameters.
READERS = tuple(map(with_reader, ("io_uring", "pread", "mmap")))


def ask_for(name: str) -> None:
    """Skips the test of the fixture that asks, where this ability cannot be had."""
    if (why := why_missing(name)) is not None:
        pytest.skip(f"needs {name}: {why}")


def skip_without_abilities(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests to skip whose machine lacks what their marker `needs` names.

    Raises:
        pytest.UsageError: a marker names what is no ability.
    """
    if config.option.basetemp is not None:
        folders = Path(config.option.basetemp).absolute().parents
        _temporary.append(str(next(folder for folder in folders if folder.exists())))
    for item in items:
        wanted = [name for marker in item.iter_markers("needs") for name in marker.args]
        wanted += [name for name in ("gpu", "two_gpus") if item.get_closest_marker(name)]
        for name in wanted:
            if name not in ABILITIES:
                raise pytest.UsageError(
                    f"{item.nodeid}: needs {name!r}; known are {', '.join(ABILITIES)}"
                )
            if (why := why_missing(name)) is not None:
                item.add_marker(pytest.mark.skip(reason=f"needs {name}: {why}"))
                break


def _refusal() -> str:
    return os.strerror(ctypes.get_errno())


@contextmanager
def _ring() -> Iterator[int]:
    """A ring of io_uring; -1 where the kernel refuses one."""
    parameters = ctypes.create_string_buffer(120)  # struct io_uring_params
    ring = _LIBC.syscall(seccomp.IO_URING_SETUP, 8, parameters)
    try:
        yield ring
    finally:
        if ring >= 0:
            os.close(ring)


def _io_uring() -> str | None:
    with _ring() as ring:
        if ring < 0:
            return f"io_uring_setup: {_refusal()}"
        # Nothing to submit and nothing to wait for: is the call allowed?
        if _LIBC.syscall(seccomp.IO_URING_ENTER, ring, 0, 0, 0, None, 0) < 0:
            return f"io_uring_enter: {_refusal()}"
    return None


def _io_uring_registration() -> str | None:
    with _ring() as ring:
        if ring < 0:
            return f"io_uring_setup: {_refusal()}"
        # Where the call is allowed, a ring without buffers has none to give back.
        _LIBC.syscall(seccomp.IO_URING_REGISTER, ring, _UNREGISTER_BUFFERS, None, 0)
        if ctypes.get_errno() != errno.ENXIO:
            return f"io_uring_register: {_refusal()}"
    return None


def _seccomp() -> str | None:
    """Whether a filter can make a system call fail."""
    return _try_in_child(lambda: seccomp.forbid(seccomp.CACHESTAT, errno.EPERM))


def _supervised_calls() -> str | None:
    """Whether a thread can answer for the kernel, call by call."""
    return _try_in_child(lambda: syscall_supervisor.ask_supervisor_for(seccomp.CACHESTAT))


def _namespaces() -> str | None:
    """Whether a process can have users and a network of its own."""
    return _try_in_child(lambda: confine.unshare(confine.CLONE_NEWUSER | confine.CLONE_NEWNET))


def _try_in_child(action: Callable[[], object]) -> str | None:
    """Returns the error of what cannot be undone in a process, tried in another one."""
    with warnings.catch_warnings():
        # pytest's own threads hold nothing that the child asks for.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 255
        try:
            action()
            code = 0
        except OSError as error:
            code = error.errno or code
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if code == 0 else os.strerror(code)


@contextmanager
def _file(num_bytes: int) -> Iterator[Path]:
    """A file among the temporary ones, written to its disk."""
    with tempfile.NamedTemporaryFile(prefix="gramary-ability-", dir=temporary_folder()) as file:
        file.write(bytes(num_bytes))
        file.flush()
        os.fsync(file.fileno())
        yield Path(file.name)


def _direct_io() -> str | None:
    with _file(2 * mmap.PAGESIZE) as path:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            return f"the file system of temporary files refuses O_DIRECT: {error.strerror}"
        try:
            os.preadv(descriptor, [mmap.mmap(-1, mmap.PAGESIZE)], mmap.PAGESIZE)
        except OSError as error:
            return f"a direct read of a temporary file: {error.strerror}"
        finally:
            os.close(descriptor)
    return None


def _droppable_cache() -> str | None:
    num_bytes = 64 * mmap.PAGESIZE
    with _file(num_bytes) as path, path.open("r+b") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), num_bytes) as mapping:
            pages = (ctypes.c_ubyte * 64)()
            place = ctypes.c_char.from_buffer(mapping)
            address = ctypes.c_void_p(ctypes.addressof(place))
            refused = _LIBC.mincore(address, ctypes.c_size_t(num_bytes), pages)
            del place
        if refused:
            return f"mincore: {_refusal()}"
        if any(page & 1 for page in pages):
            return "the file system of temporary files keeps its pages in memory"
    return None


def _cached_reads() -> str | None:
    """Whether a read can be asked for that the page cache answers at once, or not at all."""
    with _file(mmap.PAGESIZE) as path, path.open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(mmap.PAGESIZE)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            return f"a read of what is cached alone, on temporary files: {error.strerror}"
    return None


def _sparse_files() -> str | None:
    with _file(0) as path:
        try:
            os.truncate(path, 64 << 30)
        except OSError as error:
            return f"a temporary file of 64 GiB without a block: {error.strerror}"
    return None


def _overcommit() -> str | None:
    try:
        mmap.mmap(-1, 4 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        return f"4 GiB of memory that is hardly touched: {error.strerror}"
    return None


def _superuser() -> str | None:
    """Whether tests may become another user, who is held to rights and reaches their files."""
    if os.geteuid() != 0:
        return f"the tests run as user {os.geteuid()}"

    folder = folder_open_to_all()

    def become_stranger() -> None:
        # Refused in a user namespace that maps no other user.
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        os.stat(f"{folder}/.")

    return _try_in_child(become_stranger)


def _ordinary_user() -> str | None:
    return "the superuser is held to no rights of files" if os.geteuid() == 0 else None


def _mounting() -> str | None:
    with tempfile.TemporaryDirectory(prefix="gramary-ability-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", folder]
        try:
            subprocess.run(mount, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            return f"mounting a tmpfs: {said.strip()}"
        subprocess.run(["umount", folder], check=True)
    return None


def _shared_memory() -> str | None:
    return None if os.access("/dev/shm", os.W_OK) else "/dev/shm cannot be written to"


def _simd(level: int) -> str | None:
    from gramary.native import _core

    return None if _core.detected_simd_level() >= level else "this CPU, or a setting, has none"


def _gpus(num_wanted: int) -> str | None:
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num_gpus >= num_wanted:
        return None
    return f"{num_gpus} CUDA devices here" if num_gpus else "no CUDA device here"


def _no_gpu() -> str | None:
    return "there is a CUDA device here" if torch.cuda.is_available() else None


def _interpreter() -> str | None:
    """Whether Triton's kernels run on the CPU, as they do where there is no GPU."""
    interprets = os.environ.get("TRITON_INTERPRET") == "1"
    return None if interprets else "Triton compiles its kernels here, for a GPU"


def _x86_64() -> str | None:
    """Whether there is more than one level of instructions."""
    machine = platform.machine()
    return None if machine == "x86_64" else f"the core has one level of instructions on {machine}"


def _transformers_5_24() -> str | None:
    if (why := _package("transformers")) is not None:
        return why
    found = importlib.metadata.version("transformers")
    return None if found.startswith("5.24.") else f"transformers is {found}, with other words"


def _renamed_in_torch() -> str | None:
    """Whether torch has newer names for what 2.14 gave up."""
    found = importlib.util.find_spec("torch._custom_class_base")
    return None if found else f"torch {torch.__version__} has the old names alone"


def _package(name: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"the package {name} is not installed"


Probe = Callable[[], str | None]

_PACKAGES = ("matplotlib", "peft", "prometheus_client", "transformers", "triton")
_PROBES: dict[str, Probe] = {
    "io_uring": _io_uring,
    "io_uring_registration": _io_uring_registration,
    "seccomp": _seccomp,
    "supervised_calls": _supervised_calls,
    "namespaces": _namespaces,
    "direct_io": _direct_io,
    "droppable_cache": _droppable_cache,
    "cached_reads": _cached_reads,
    "sparse_files": _sparse_files,
    "overcommit": _overcommit,
    "superuser": _superuser,
    "ordinary_user": _ordinary_user,
    "mounting": _mounting,
    "shared_memory": _shared_memory,
    "avx2": functools.partial(_simd, 1),
    "avx512": functools.partial(_simd, 2),
    "gpu": functools.partial(_gpus, 1),
    "two_gpus": functools.partial(_gpus, 2),
    "no_gpu": _no_gpu,
    "x86_64": _x86_64,
    "renamed_in_torch": _renamed_in_torch,
    "transformers_5_24": _transformers_5_24,
    "interpreter": _interpreter,
    **{name: functools.partial(_package, name) for name in _PACKAGES},
}

# Each gives why the ability is missing, or None; asked once a process.
ABILITIES: dict[str, Any] = {name: functools.cache(probe) for name, probe in _PROBES.items()}
