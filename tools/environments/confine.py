"""Takes abilities from a command: python -m tools.environments.confine [OPTIONS] -- COMMAND ...

It changes this process and becomes the command, so that all of its children are held to the same.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
# A number that no user of the machine is likely to have; in a user namespace it is ours.
STRANGER = 31337

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_LIBC = ctypes.CDLL(None, use_errno=True)


def keep_one_cpu() -> None:
    """Leaves one of the CPUs that this process may use."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def forbid_io_uring() -> None:
    """Makes the kernel refuse rings, as many containers' seccomp profiles do."""
    sys.path.insert(0, str(ROOT / "tests"))
    import seccomp

    seccomp.forbid_io_uring(errno.EPERM)


def leave_network() -> None:
    """Leaves every interface but a loopback of its own."""
    if os.geteuid() == 0:
        unshare(CLONE_NEWNET)
    else:
        _enter_user_namespace(CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def become_nobody() -> None:
    """Becomes a user who owns nothing."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def give_up_rights() -> None:
    """Becomes an ordinary user who owns what the superuser owns, in a user namespace.

    The rights that the namespace gives end when the command begins, as for every user but 0.
    """
    _enter_user_namespace(0)


def _enter_user_namespace(more: int) -> None:
    user, group = os.geteuid(), os.getegid()
    ours = STRANGER if user == 0 else user
    unshare(CLONE_NEWUSER | more)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{ours} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{ours} {group} 1")


def unshare(what: int) -> None:
    """Gives this process namespaces of its own.

    Raises:
        OSError: the kernel refuses.
    """
    if _LIBC.unshare(what):
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")


# In this order: what is left last can still do what the others ask for.
CONFINEMENTS = {
    "one-cpu": keep_one_cpu,
    "no-network": leave_network,
    "as-nobody": become_nobody,
    "without-rights": give_up_rights,
    "no-io-uring": forbid_io_uring,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Confines this process and becomes the command."""
    parser = argparse.ArgumentParser(prog="tools.environments.confine", description=__doc__)
    for name, confine in CONFINEMENTS.items():
        parser.add_argument(f"--{name}", action="store_true", help=confine.__doc__)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    for name, confine in CONFINEMENTS.items():
        if getattr(options, name.replace("-", "_")):
            confine()
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
