"""The end of the interpreter, and forked children: what depends on threads hears of both.

The interpreter ends without waiting for daemon threads, and a forked child has none of its
parent's threads.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from typing import Protocol

from gramary.errors import ClosedError

logger = logging.getLogger("gramary")


class ProcessListener(Protocol):
    """What depends on threads of this process.

    At the end of the interpreter daemon threads may stand in any call. A thread that is inside an
    operation of torch then ends the process with SIGABRT (torch's own flaw), so calls that are
    under way get a moment to return, and later ones of other threads are refused. Functions of
    `atexit` that were registered earlier run later, and may call on.
    """

    def interpreter_ends(self, deadline: float) -> None:
        """Ends threads of its own, waits for calls of others until a time; unmaps nothing."""

    def forked(self) -> None:
        """Called in a forked child, which has the forking thread alone."""


# How long the end of the interpreter waits for calls of other threads.
LAST_CALL_S = 1.0

_listeners: weakref.WeakSet[ProcessListener] = weakref.WeakSet()
# The thread that ends the interpreter, once it does; written here alone.
ender: int | None = None


def tell_of_process(listener: ProcessListener) -> None:
    """Has a listener told when the interpreter ends, and in forked children; held weakly."""
    _listeners.add(listener)


def require_interpreter() -> None:
    """Raises ClosedError in every thread but the one that ends the interpreter, once it does."""
    if ender is not None and ender != threading.get_ident():
        raise ClosedError("the interpreter ends: daemon threads are not served any more")


def _tell_of_end() -> None:
    global ender
    ender = threading.get_ident()
    deadline = time.monotonic() + LAST_CALL_S
    for listener in list(_listeners):
        try:
            listener.interpreter_ends(deadline)
        except Exception:
            logger.exception("%r could not end with the interpreter", listener)


def _tell_of_fork() -> None:
    for listener in list(_listeners):
        listener.forked()


atexit.register(_tell_of_end)
os.register_at_fork(after_in_child=_tell_of_fork)


__all__ = ["ProcessListener", "require_interpreter", "tell_of_process"]
