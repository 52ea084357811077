"""Forbids system calls to the calling thread and what it starts, for tests in a child process.

Source: seccomp(2); struct seccomp_data has the call's number at byte 0 and its arguments, eight
bytes each, from byte 16 on.
"""

import ctypes
import os
import platform
import struct

IO_URING_SETUP = 425
IO_URING_ENTER = 426
IO_URING_REGISTER = 427
CACHESTAT = 451
OPENAT = 257 if platform.machine() == "x86_64" else 56

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_RETURN_ALLOW = 0x7FFF0000
_RETURN_ERRNO = 0x00050000

_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def forbid(number: int, errno: int, *, flag_argument: int | None = None, flag: int = 0) -> None:
    """Makes a system call fail, always or where an argument has a flag set; it cannot be undone."""
    code = [(_LOAD, 0, 0, 0)]
    if flag_argument is None:
        code += [(_JUMP_EQUAL, 0, 1, number)]
    else:
        code += [(_JUMP_EQUAL, 0, 3, number), (_LOAD, 0, 0, 16 + 8 * flag_argument)]
        code += [(_JUMP_SET, 0, 1, flag)]
    code += [(_RETURN, 0, 0, _RETURN_ERRNO | errno), (_RETURN, 0, 0, _RETURN_ALLOW)]
    program = pack_program(code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def pack_program(code: list[tuple[int, int, int, int]]) -> _Program:
    """Returns lines of (code, jump if true, jump if false, operand) as the kernel takes them."""
    data = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = _Program(len(code), ctypes.cast(data, ctypes.c_void_p))
    program.data = data  # kept as long as the program
    return program


def forbid_io_uring(errno: int, number: int = IO_URING_SETUP) -> None:
    """Makes io_uring_setup fail, or another of its three calls."""
    forbid(number, errno)


def forbid_direct_io(errno: int) -> None:
    """Makes opening a file with O_DIRECT fail."""
    forbid(OPENAT, errno, flag_argument=2, flag=os.O_DIRECT)
