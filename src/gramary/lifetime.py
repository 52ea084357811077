"""How things end: `with` closes them, close waits for users, and who must be closed before."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

from gramary.errors import ClosedError


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
    """Counts the calls inside an object, and closes it once the last has left.

    Any number of threads may be inside `using()`. The first `close()` keeps new ones out, waits
    for those inside, closes whoever has to be closed first and gets True; every other `close()`
    waits for those inside and gets False.

    Args:
        what: the object's name in messages, such as "table".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._changed = threading.Condition()
        self._users = 0
        self._closing = False
        self._closes_first: weakref.WeakSet[Closable] = weakref.WeakSet()

    @property
    def closed(self) -> bool:
        """Whether closing has begun."""
        return self._closing

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Holds the object open for the block.

        Raises:
            ClosedError: closing has begun.
        """
        with self._changed:
            if self._closing:
                raise ClosedError(f"the {self._what} was closed")
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                if self._users == 0:
                    self._changed.notify_all()

    def close_first(self, other: Closable) -> None:
        """Has `close` close somebody who lives on the object without being inside.

        Args:
            other: held weakly.

        Raises:
            ClosedError: closing has begun.
        """
        with self.using():
            self._closes_first.add(other)

    def close(self) -> bool:
        """Keeps new users out and waits for those inside; True for the first caller only."""
        with self._changed:
            is_first = not self._closing
            self._closing = True
            self._changed.wait_for(lambda: self._users == 0)
        # Out of the lock: the others may be waiting to be told that the object is closed.
        for other in list(self._closes_first) if is_first else ():
            other.close()
        return is_first
