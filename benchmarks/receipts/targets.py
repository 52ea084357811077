"""What a benchmark promised of a candidate, and whether it was kept.

In a receipt, a case's `targets` is {candidate: {at_most, met}}, or {at_most, of, met} where the
limit is not of the ratio.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.receipts.errors import ReceiptError
from benchmarks.receipts.head import require_fields

# What a limit can be of, and how a promise about it is written.
_FORMS = {
    "ratio": "≤ {}",
    "difference": "≤ +{}",
    "median": "≤ {}",
    "maximum": "worst ≤ {}",
}
_FIELDS = {"at_most": (int, float), "met": bool}


@dataclasses.dataclass(frozen=True)
class Target:
    """The largest value promised for a candidate.

    Attributes:
        at_most: the limit, met by what equals it.
        of: what it limits: "ratio" (median / baseline's median); or, in the case's unit,
            "difference" (median - baseline's median), "median", or "maximum" of the samples.
    """

    at_most: float
    of: str = "ratio"

    def judge(self, summary: Mapping[str, Any], base: float) -> dict[str, Any]:
        """Returns the target as a receipt holds it.

        Args:
            summary: the candidate's, with `samples` and `median`.
            base: the baseline's median.
        """
        median: float = summary["median"]
        measured = {
            "ratio": median / base,
            "difference": median - base,
            "median": median,
            "maximum": max(summary["samples"]),
        }[self.of]
        of = {} if self.of == "ratio" else {"of": self.of}
        return {"at_most": self.at_most, **of, "met": measured <= self.at_most}


def as_target(limit: float | Target) -> Target:
    """Returns a target as it is, and a number as the largest ratio."""
    return limit if isinstance(limit, Target) else Target(limit)


def read_target(where: str, recorded: Any) -> Target:
    """Returns a receipt's target.

    Raises:
        ReceiptError: a field is missing, unknown or wrong; the message begins with `where`.
    """
    has_kind = isinstance(recorded, Mapping) and "of" in recorded
    require_fields(where, recorded, {**_FIELDS, "of": str} if has_kind else _FIELDS)
    target = Target(recorded["at_most"], recorded.get("of", "ratio"))
    if target.of not in _FORMS:
        raise ReceiptError(f"{where}.of: expected one of {tuple(_FORMS)}, got {target.of!r}")
    return target


def describe_target(recorded: Mapping[str, Any], in_unit: Callable[[float], str]) -> str:
    """Returns a receipt's target in words, such as "≤ +15 µs: met".

    Args:
        recorded: {at_most, met}, with or without `of`.
        in_unit: writes a value of the case's unit; a ratio has none.
    """
    of, limit = recorded.get("of", "ratio"), recorded["at_most"]
    written = f"{limit:.3g}" if of == "ratio" else in_unit(limit)
    return f"{_FORMS[of].format(written)}: {'met' if recorded['met'] else 'missed'}"
