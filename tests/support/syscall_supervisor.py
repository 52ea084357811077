"""Decides call by call whether a system call goes through or fails, for the threads of a test.

A thread of the test's own is filtered, and with it every thread that it starts; no other one of the
process is. A supervising thread, which is not, answers for the kernel. It is Python: what is
supervised must not hold the interpreter lock while it makes the call (the reader lets go of it in
`read`, not while it opens).

Source: seccomp(2), seccomp_unotify(2); ioctl numbers from include/uapi/linux/seccomp.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import struct
import threading
from collections.abc import Callable, Iterator

from seccomp import forbid, pack_program

_SECCOMP = 317 if platform.machine() == "x86_64" else 277
_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
_PR_SET_NO_NEW_PRIVS = 38
_ASK, _ALLOW = 0x7FC00000, 0x7FFF0000
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06

# id, pid, flags; the call's number, architecture and instruction; its six arguments
_NOTICE = struct.Struct("QIIiIQ6Q")
# id, value, error, flags
_ANSWER = struct.Struct("QqiI")
_RECEIVE = 3 << 30 | _NOTICE.size << 16 | ord("!") << 8 | 0
_SEND = 3 << 30 | _ANSWER.size << 16 | ord("!") << 8 | 1
_GO_ON = 1

# Told the arguments of a call; returns 0 to let it through, or the errno that it fails with.
Judge = Callable[[tuple[int, ...]], int]


def run_in_thread(work: Callable[[], object]) -> None:
    """Runs `work` in a thread of its own and raises what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def run_forbidden(calls: dict[int, int], work: Callable[[], object]) -> None:
    """Runs `work` in a thread in which these calls fail with these error numbers."""

    def run() -> None:
        for number, code in calls.items():
            forbid(number, code)
        work()

    run_in_thread(run)


class Supervised:
    """What a supervised thread can use: `judge` may be replaced at any time.

    Attributes:
        judge: decides each call.
        num_calls: calls seen.
        thread_ids: the native ids of the threads that made them.
    """

    def __init__(self) -> None:
        self.judge: Judge = lambda _: 0
        self.num_calls = 0
        self.thread_ids: set[int] = set()


def run_supervised(number: int, work: Callable[[Supervised], object]) -> None:
    """Runs `work` in a thread whose calls of that number a judge decides."""
    supervised = Supervised()

    def run() -> None:
        with _supervise(number, supervised):
            work(supervised)

    run_in_thread(run)


@contextlib.contextmanager
def _supervise(number: int, supervised: Supervised) -> Iterator[None]:
    """Filters the calling thread from now on; in the block its calls are answered."""
    has_listener, is_over = threading.Event(), threading.Event()
    listeners: list[int] = []

    def answer() -> None:
        has_listener.wait()
        try:
            while listeners and not is_over.is_set():
                _answer_one(listeners[0], supervised)
        finally:
            # Whoever waits for an answer gets ENOSYS now.
            for listener in listeners:
                os.close(listener)

    # Started first, so that it is not filtered.
    supervisor = threading.Thread(target=answer)
    supervisor.start()
    try:
        listeners.append(ask_supervisor_for(number))
    finally:
        has_listener.set()
    try:
        yield
    finally:
        is_over.set()
        supervisor.join()


def ask_supervisor_for(number: int) -> int:
    """Installs the filter in the calling thread; returns the descriptor to answer at."""
    code = [(_LOAD, 0, 0, 0), (_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ASK)]
    code += [(_RETURN, 0, 0, _ALLOW)]
    program = pack_program(code)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    listener = libc.syscall(_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program))
    if listener < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(listener)


def _answer_one(listener: int, supervised: Supervised) -> None:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    if not poll.poll(20):
        return
    notice = bytearray(_NOTICE.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, notice)
        fields = _NOTICE.unpack(notice)
        supervised.num_calls += 1
        supervised.thread_ids.add(fields[1])
        code = supervised.judge(fields[6:])
        answer = _ANSWER.pack(fields[0], 0, -code, 0 if code else _GO_ON)
        fcntl.ioctl(listener, _SEND, bytearray(answer))
    except OSError as gone:
        # The call was broken off, by a signal for example, and comes again.
        if gone.errno != errno.ENOENT:
            raise
