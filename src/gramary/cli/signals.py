"""What the command does when it is asked to end, from its first line to its last.

A signal ends the process with 128 and its number (130 for an interrupt), in one of two ways. While
the command works, the first one raises `KeyboardInterrupt` in the main thread, so that files,
tables and the terminal are put in order; a second one ends the process at once. Before and after
that, and while modules are imported, it ends the process at once: there is nothing to put in order,
and an exception would be lost. The import of numpy inside torch's swallows it, and Python runs no
handler while it takes its modules down, which takes a second with torch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ending:
    """How this process ends. Before `take_over` nothing here does anything.

    Attributes:
        raises: whether a signal raises an exception first.
        signal_code: exit code of the first signal that came; 0 before.
        exit_code: the code that the process is to end with, once it is known.
    """

    raises = False
    signal_code = 0
    exit_code: int | None = None


_ending = _Ending()


def take_over() -> None:
    """Makes the signals of this process ours; to be called once, from its main thread.

    A signal that the caller set to be ignored (nohup, a job in the background) stays ignored.
    """
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _handle)
    # The first to be registered is the last to be called.
    atexit.register(_leave)


def _handle(number: int, _frame: FrameType | None) -> None:
    code = 128 + number
    if not _ending.raises or _ending.signal_code:
        os._exit(_ending.signal_code or code)
    _ending.signal_code = code
    raise KeyboardInterrupt


def _leave() -> None:
    """Ends the process once everything else that wants to run at its exit has run."""
    if _ending.exit_code is None:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(_ending.exit_code)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """While the block runs, a signal raises `KeyboardInterrupt` first."""
    try:
        _ending.raises = True
        yield
    finally:
        _ending.raises = False


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """While the block imports modules, a signal ends the process at once."""
    raises, _ending.raises = _ending.raises, False
    try:
        yield
    finally:
        _ending.raises = raises


def signal_code() -> int:
    """Returns the exit code of the signal that came while the command worked; 0 without one."""
    return _ending.signal_code


def end_with(code: int) -> None:
    """Settles the code that the process ends with when it leaves."""
    _ending.exit_code = code


__all__ = ["end_with", "importing", "raising", "signal_code", "take_over"]
