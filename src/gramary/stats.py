"""Counters that many threads add to, and snapshots of them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class TierStats:
    """One tier of a table.

    Attributes:
        name: "device", "host" or "disk".
        num_rows: rows it holds.
        nbytes: bytes of these rows.
        facts: the tier's own counters and facts, by name.
    """

    name: str
    num_rows: int
    nbytes: int
    facts: Mapping[str, int | float | str]


@dataclasses.dataclass(frozen=True)
class TableStats:
    """What a table did since it was opened.

    Attributes:
        num_calls: lookups and embeds.
        num_rows_asked: rows asked for, -1 and padding included.
        seconds: time the callers' threads spent in these calls (on CUDA: queueing them).
        tiers: the tiers that hold rows, in order.
    """

    num_calls: int
    num_rows_asked: int
    seconds: float
    tiers: tuple[TierStats, ...]

    def tier(self, name: str) -> TierStats | None:
        """Returns the tier of this name; None where it holds no rows."""
        return next((tier for tier in self.tiers if tier.name == name), None)


class CallCounter:
    """Counts calls, the rows they asked for and the time they took, on any thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        # Calls, rows and seconds in one value: an interrupt leaves all of them, or none.
        self._totals = (0, 0, 0.0)

    def totals(self) -> tuple[int, int, float]:
        """Returns the calls counted, the rows they asked for, and their seconds."""
        return self._totals

    def add(self, num_rows: int, seconds: float) -> None:
        """Counts one call that asked for `num_rows` rows."""
        with self._turn:
            calls, rows, total_s = self._totals
            self._totals = (calls + 1, rows + num_rows, total_s + seconds)
