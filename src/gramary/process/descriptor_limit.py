"""File descriptors: how many may be open here, how many are, and the error where all are taken.

A process may have a number of them open (RLIMIT_NOFILE: EMFILE), and a machine a number of files
(fs.file-max: ENFILE). Any call that opens a file may meet either limit, and reports it in words of
its own; `naming_shortage` stands around public calls and names the limit instead.

Source: getrlimit(2), open(2), proc_sys_fs(5).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator

from gramary.errors import DescriptorLimitError

SHORTAGES = (errno.EMFILE, errno.ENFILE)

REMEDY = (
    "raise the limit: `ulimit -n 65536`, LimitNOFILE= of a systemd unit, --ulimit nofile= of a "
    "container"
)
REMEDY_OF_MACHINE = "raise that limit: sysctl fs.file-max"


def soft_limit() -> int | None:
    """Returns how many descriptors this process may have open; None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def count_open() -> int | None:
    """Returns how many descriptors are open; None where even that cannot be looked at.

    The limit bounds their numbers, so one with a higher number, opened before the limit was
    lowered, does not count.
    """
    limit = soft_limit()
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return None
    # One of them is the folder's own.
    return sum(limit is None or number < limit for number in numbers) - 1


def shortage_in(error: BaseException | None) -> int:
    """Returns EMFILE or ENFILE where an error, or one that caused it, has that number; else 0."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if (code := getattr(error, "errno", None)) in SHORTAGES:
            return int(code)
        error = error.__cause__ or error.__context__
    return 0


def too_few(what: str, code: int, needed: int | None = None) -> DescriptorLimitError:
    """Returns the error for a call that found no descriptor left.

    Args:
        what: what was to be done, after "to".
        code: EMFILE or ENFILE.
        needed: descriptors that it needs beside those that are open; None where that is not known.
    """
    needs = "" if needed is None else f", and this call needs {needed} more"
    if code == errno.ENFILE:
        return DescriptorLimitError(
            f"too few file descriptors to {what}: this machine has as many files open as it may "
            f"(fs.file-max){needs}; {REMEDY_OF_MACHINE}"
        )
    num_open = count_open()
    are = "" if num_open is None else f", {num_open} are open"
    return DescriptorLimitError(
        f"too few file descriptors to {what}: at most {soft_limit()} may be open in this process "
        f"(ulimit -n){are}{needs}; {REMEDY}"
    )


@contextlib.contextmanager
def naming_shortage(what: str, needed: Callable[[], int] | None = None) -> Iterator[None]:
    """Raises an error that names the limit, where a block fails for too few descriptors.

    Args:
        what: what the block does, after "to".
        needed: returns the descriptors that it needs beside those that were open.

    Raises:
        DescriptorLimitError: in place of such an error.
    """
    try:
        yield
    except DescriptorLimitError:
        raise
    except Exception as error:
        if not (code := shortage_in(error)):
            raise
        raise too_few(what, code, None if needed is None else needed()) from error


__all__ = [
    "REMEDY",
    "SHORTAGES",
    "count_open",
    "naming_shortage",
    "shortage_in",
    "soft_limit",
    "too_few",
]
