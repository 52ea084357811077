"""What a slot pool knows of a slot: nothing but numbers, decided without touching a window."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

from gramary.arguments import require_integer
from gramary.errors import ArgumentError, SlotError

# Token ids and positions are 64-bit integers, in the blob of a window as on a device.
MAX_TOKEN = 2**63 - 1
MAX_POSITION = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Tenure:
    """How far one request has come in its slot.

    A slot of `state_capacity` columns holds the newest positions; a start is possible while
    every column before it is still there.

    Attributes:
        slot: the slot.
        base: position the request was started (0) or restored at.
        highest: one past the highest position run since; equal to base before the first run.
        end: one past the last position of the newest run; what lies beyond is stale.
        start: first position of the newest run; end where it had no tokens.
    """

    slot: int
    base: int
    highest: int
    end: int
    start: int

    @classmethod
    def at(cls, slot: int, position: int) -> Tenure:
        """Returns the record of a request restored at a position, or started at 0."""
        return cls(slot, position, position, position, position)

    def lowest_start(self, max_speculative_tokens: int) -> int:
        """Returns the lowest position whose window is intact.

        Position p shares its column with p + state_capacity, so the oldest intact position is
        highest - state_capacity, and a start needs the state_length positions before it.
        """
        return max(self.base, self.highest - (max_speculative_tokens + 1))

    def check(self, position: int, max_speculative_tokens: int) -> None:
        """Raises SlotError where the window at `position` is not in the slot."""
        low = self.lowest_start(max_speculative_tokens)
        if low <= position <= self.end:
            return
        if position > self.end:
            remedy = f"run the tokens from {self.end} on first"
        elif position < self.base:
            remedy = "release it and restore a window checkpoint at or before that position"
        else:
            remedy = (
                f"max_speculative_tokens = {max_speculative_tokens} bounds a rollback; release it "
                "and restore a window checkpoint, or run the request again from 0"
            )
        raise SlotError(
            f"slot {self.slot}: expected a position from {low} to {self.end}, got {position}; "
            f"{remedy}"
        )

    def advanced(self, start: int, num_tokens: int) -> Tenure:
        """Returns the record after a run; one without tokens leaves the window as it is."""
        if not num_tokens:
            return dataclasses.replace(self, start=self.end)
        end = start + num_tokens
        highest = max(self.highest, end)
        return dataclasses.replace(self, highest=highest, end=end, start=start)


class CheckpointState(enum.Enum):
    """Life of a window checkpoint."""

    PENDING = "pending"
    COMMITTED = "committed"
    DISCARDED = "discarded"


@dataclasses.dataclass(eq=False)
class WindowCheckpoint:
    """A window kept for prefix reuse; `SlotPool` makes it and alone changes it.

    Attributes:
        slot: where the window lies; the destination to give to `ple.export_checkpoint`.
        position: tokens of the prefix, that is the position of the next token.
        history: the prefix's last history_length tokens, oldest first (EOS where missing).
        offset: tokens of the noted run up to the position, for `ple.export_checkpoint`; 0 where
            none is to be exported.
        state: pending until `commit`, committed until `discard`.
    """

    slot: int
    position: int
    history: tuple[int, ...]
    offset: int = 0
    state: CheckpointState = CheckpointState.PENDING


def token_history(history: Iterable[int]) -> tuple[int, ...]:
    """Returns a caller's history as plain numbers.

    Raises:
        ArgumentError: it is no sequence of token ids.
    """
    try:
        tokens = tuple(history)
    except TypeError:
        raise ArgumentError(f"history: expected token ids, got {history!r}") from None
    return tuple(
        require_integer(f"history[{i}]", token, 0, MAX_TOKEN) for i, token in enumerate(tokens)
    )
