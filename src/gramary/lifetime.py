"""Close waits for users: one gate for objects that many threads use and one closes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from gramary.errors import ClosedError


class Lifetime:
    """Counts the calls inside an object, and closes it once the last has left.

    Any number of threads may be inside `using()`. The first `close()` keeps new ones out, waits
    for those inside and gets True; every other `close()` waits for the same and gets False.

    Args:
        what: the object's name in messages, such as "table".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._changed = threading.Condition()
        self._users = 0
        self._closing = False

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

    def close(self) -> bool:
        """Keeps new users out and waits for those inside; True for the first caller only."""
        with self._changed:
            is_first = not self._closing
            self._closing = True
            self._changed.wait_for(lambda: self._users == 0)
            return is_first
