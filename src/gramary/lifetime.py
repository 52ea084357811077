"""How things end: `with` closes them, close waits for users, and who must be closed before."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from gramary.errors import ClosedError
from gramary.native.gate import LOOK_EVERY_S, Gate
from gramary.process import events


class Closable(Protocol):
    """What can be closed, more than once."""

    def close(self) -> None:
        """Ends it; more calls do nothing."""


class Closing:
    """What a `with` block closes at its end."""

    def close(self) -> None:
        """Ends it; more calls do nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Lifetime:
    """Counts the calls inside an object, and ends it once the last has left.

    Any number of threads may be inside `using()`. `close` keeps new ones out, waits for those
    inside, closes whoever has to be closed first, and ends the object. It ends once; a `close` that
    is broken off, by an interrupt say, is taken up by the next, which every step has to bear.

    Args:
        what: the object's name in messages, such as "table".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._gate = Gate(ClosedError, f"the {what} was closed")
        self._ending = threading.RLock()
        self._has_ended = False
        self._closes_first: weakref.WeakSet[Closable] = weakref.WeakSet()
        events.tell_of_process(self)

    @property
    def closed(self) -> bool:
        """Whether closing has begun."""
        return self._gate.is_shut

    def using(self) -> contextlib.AbstractContextManager[None]:
        """Returns what holds the object open for a block.

        Raises:
            ClosedError: the interpreter ends, or, on entering the block, closing has begun.
        """
        # Asked here first, so that a call costs no other one while the interpreter lives.
        if events.ender is not None:
            events.require_interpreter()
        return self._gate.using

    def close_first(self, other: Closable) -> None:
        """Has `close` close an object that lives on this one without being inside.

        Args:
            other: held weakly.

        Raises:
            ClosedError: closing has begun.
        """
        with self.using():
            self._closes_first.add(other)

    def close(self, end: Callable[[], None]) -> None:
        """Keeps new users out, waits for those inside, and ends the object if it has not ended.

        Args:
            end: gives back what the object holds; whatever it raises, it is called no more once
                it was through.
        """
        self._gate.close()
        # Others may be waiting to learn that the object is closed: for that, the gate is enough.
        with self._ending:
            if self._has_ended:
                return
            for other in list(self._closes_first):
                other.close()
            end()
            self._has_ended = True

    def forked(self) -> None:
        """Forgets the calls of threads that a forked child does not have."""
        was_shut = self._gate.is_shut
        self._gate = Gate(ClosedError, f"the {self._what} was closed")
        if was_shut:
            self._gate.close()
        self._ending = threading.RLock()

    def interpreter_ends(self, deadline: float) -> None:
        """Waits for calls of other threads; who stays longer reads on until the process ends."""
        while not self._gate.using.empty(LOOK_EVERY_S) and time.monotonic() < deadline:
            pass


# Calls that belong to no object yet, such as one that opens a table: the end of the interpreter
# waits for them too, and refuses later ones.
calls_without_object = Lifetime("interpreter")


__all__ = ["Closable", "Closing", "Lifetime", "calls_without_object"]
