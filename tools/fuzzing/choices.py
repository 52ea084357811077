"""Decisions taken from bytes, so that a fuzzer that changes bytes changes decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads decisions off a byte string; once it is used up, every decision is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def integer(self, low: int, high: int) -> int:
        """Returns a number from `low` to `high`, both included."""
        span = high - low + 1
        return low + int.from_bytes(self.blob(((span - 1).bit_length() + 7) // 8), "little") % span

    def pick(self, values: Sequence[T]) -> T:
        """Returns one of `values`."""
        return values[self.integer(0, len(values) - 1)]

    def blob(self, num_bytes: int) -> bytes:
        """Returns the next bytes, fewer at the end."""
        taken = self._data[self._at : self._at + num_bytes]
        self._at += num_bytes
        return taken
