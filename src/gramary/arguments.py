"""Checks of what a caller passes: of which type it is, and whether a number lies in its range."""

from __future__ import annotations

import operator

from gramary.errors import ArgumentError


def require_type(name: str, value: object, *kinds: type) -> None:
    """Raises ArgumentError where an argument is an instance of none of `kinds`."""
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ArgumentError(f"{name}: expected a {expected}, got {value!r}")


def require_integer(
    name: str, value: object, low: int | None = None, high: int | None = None
) -> int:
    """Returns an argument that is an integer of any kind (NumPy's, a tensor's) as an int.

    Args:
        name: the argument's name.
        value: what came; a bool is no integer.
        low: the least integer allowed; None is any.
        high: the greatest one allowed, given only with `low`; None is any.

    Raises:
        ArgumentError: it is no integer, or out of its range.
    """
    number = _as_integer(value)
    is_low = number is not None and low is not None and number < low
    is_high = number is not None and high is not None and number > high
    if number is None or is_low or is_high:
        bounds = "" if low is None else f" of at least {low}"
        bounds = bounds if high is None else f" from {low} to {high}"
        raise ArgumentError(f"{name}: expected an integer{bounds}, got {value!r}")
    return number


def _as_integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


__all__ = ["require_integer", "require_type"]
