"""JSON objects from files that nobody vouches for."""

from __future__ import annotations

import json
import reprlib
from typing import Any


def parse_object(text: bytes) -> dict[str, Any]:
    """Returns the JSON object that `text` is, refusing what parsers disagree on.

    Raises:
        ValueError: it is not UTF-8, not JSON, nested too deep, not an object, starts with a byte
            order mark, holds NaN or Infinity, or has a key twice.
    """
    if text.startswith(b"\xef\xbb\xbf"):
        raise ValueError("it starts with a byte order mark; save it as UTF-8 without one")
    try:
        parsed = json.loads(
            text.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(parsed, dict):
        raise ValueError("it is no JSON object")
    return parsed


def show(value: Any) -> str:
    """Returns `repr(value)`, shortened so that a hostile file cannot flood a message."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = 160
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 8


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        # A lone surrogate can be written in JSON but is in no UTF-8 text.
        key.encode()
        if key in found:
            raise ValueError(f"it has the key {show(key)} twice")
        found[key] = value
    return found


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")
