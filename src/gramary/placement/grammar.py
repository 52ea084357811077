"""The placement grammar: which tiers a table may use, in which order, with what budgets.

device[=SIZE|auto|all], host[=SIZE|auto|all], disk
"""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from typing import Literal

from gramary.errors import ArgumentError, PlacementSyntaxError

TIERS = ("device", "host", "disk")
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
GRAMMAR = """\
placement = tier {"," tier}, each tier once
tier      = "device" ["=" budget] | "host" ["=" budget] | "disk" (last)
budget    = SIZE | "auto" | "all"; without one: all that is left
SIZE      = a whole number of bytes, or a decimal with B, KiB, MiB, GiB or TiB (4096, 1.5GiB)"""

_SIZE = re.compile(r"([0-9]{1,24})(\.[0-9]{1,24})?([A-Za-z]*)")


@dataclasses.dataclass(frozen=True)
class TierRequest:
    """One tier as a placement names it; `budget` is bytes, "auto" or "all" (all that is left)."""

    tier: str
    budget: int | Literal["auto", "all"]

    def __str__(self) -> str:
        return self.tier if self.budget == "all" else f"{self.tier}={self.budget}"


def parse_placement(text: str) -> tuple[TierRequest, ...]:
    """Returns the tiers of a placement, in order.

    Args:
        text: a placement such as "device=auto,host=32GiB,disk".

    Raises:
        PlacementSyntaxError: it does not parse; the message shows where, and the grammar.
        ArgumentError: it is no string.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"placement: expected a string, got {text!r}\n{GRAMMAR}")
    requests: list[TierRequest] = []
    position = 0
    for item in text.split(","):
        request = _parse_tier(text, position, item)
        if any(request.tier == earlier.tier for earlier in requests):
            raise _syntax_error(text, position, f"{request.tier} is named twice")
        if requests and requests[-1].tier == "disk":
            raise _syntax_error(text, position, "disk must be last")
        requests.append(request)
        position += len(item) + 1
    return tuple(requests)


def format_bytes(nbytes: int) -> str:
    """Returns bytes for people: 0 B, 1.5 KiB, 47.7 GiB."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if nbytes >= UNITS[unit]:
            return f"{nbytes / UNITS[unit]:.1f} {unit}"
    return f"{nbytes} B"


def _parse_tier(text: str, position: int, item: str) -> TierRequest:
    """Returns the tier that one item between commas names; `position` is where it starts."""
    tier, equals, budget = item.partition("=")
    if tier not in TIERS:
        raise _syntax_error(text, position, f"expected device, host or disk, got {tier!r}")
    if not equals:
        return TierRequest(tier, "all")
    position += len(tier) + 1
    if tier == "disk":
        raise _syntax_error(text, position, "disk takes no size: it holds what is left")
    if budget in ("auto", "all"):
        return TierRequest(tier, "auto" if budget == "auto" else "all")
    return TierRequest(tier, _parse_size(text, position, budget))


def _parse_size(text: str, position: int, size: str) -> int:
    match = _SIZE.fullmatch(size)
    if match is None or match[3] not in UNITS or (match[2] and not match[3]):
        raise _syntax_error(text, position, f"expected a size, auto or all, got {size!r}")
    return int(Fraction(match[1] + (match[2] or "")) * UNITS[match[3]])


def _syntax_error(text: str, position: int, problem: str) -> PlacementSyntaxError:
    pointer = " " * position + "^"
    return PlacementSyntaxError(
        f"placement: {problem} at position {position}\n  {text}\n  {pointer}\n{GRAMMAR}"
    )
