"""A limit on threads that holds: the superuser, whom none binds, becomes an ordinary user first."""

from __future__ import annotations

import ctypes
import os
import resource

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_KEEPCAPS = 8
_CAPABILITY_VERSION = 0x20080522
_CAP_DAC_OVERRIDE = 1


def start_no_more_than(num_threads: int, *, is_final: bool = True) -> None:
    """Lets this process start no more than so many threads and processes from now on.

    The superuser becomes a user who has no other process, and still reads and writes every file.
    An ordinary user, who may have other processes, is held to none at all; only 0 can be asked for.
    A limit that is not final may be raised again.
    """
    if os.geteuid() == 0:
        _LIBC.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setresuid(*[200_000 + os.getpid()] * 3)
        _keep_capability(_CAP_DAC_OVERRIDE)
        limit = num_threads + 1
    else:
        assert num_threads == 0, "an ordinary user's other processes count too"
        limit = 0
    most = limit if is_final else resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, most))


def _keep_capability(number: int) -> None:
    """Gives up all capabilities but one, in place of those that the change of user took."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    # Effective, permitted, inheritable; twice, for 64 bits.
    sets = (ctypes.c_uint32 * 6)(1 << number, 1 << number, 0, 0, 0, 0)
    if _LIBC.syscall(_number_of_capset(), header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _number_of_capset() -> int:
    return {"x86_64": 126, "aarch64": 91}[os.uname().machine]
