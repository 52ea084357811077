"""Counts what a public call passes through: python -m tools.count_calls

A warm call is traced; Python frames of this package count, C++ and torch do not. The layer of
Python between a caller and the work is paid at every call and read by everyone who looks for a
row, so `tests/test_calls.py` holds the numbers down.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import gramary

REPOSITORY = Path(__file__).resolve().parent.parent
TINY = REPOSITORY / "models" / "tiny"
PACKAGE = os.path.dirname(gramary.__file__) + os.sep

# Tokens of the traced batch: two requests, one of them a single token.
TOKENS = (73, 416, 32, 919, 97, 115)
STARTS = (0, 5, 6)


@dataclasses.dataclass(frozen=True)
class Passage:
    """What one call passed through.

    Attributes:
        calls: Python frames of this package that were entered.
        files: files of this package that those frames belong to.
    """

    calls: int
    files: int


def trace(call: Callable[[], object], *, warm_up: int = 3) -> Passage:
    """Returns what the last of several equal calls passes through, on the calling thread."""
    for _ in range(warm_up):
        call()
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Passage(len(entered), len(set(entered)))


@contextlib.contextmanager
def public_calls(model: str | os.PathLike[str] = TINY) -> Iterator[dict[str, Callable[[], object]]]:
    """Yields the public calls that are counted, by name, on CPU tables of a model."""
    token_ids = torch.tensor(TOKENS)
    starts = torch.tensor(STARTS, dtype=torch.int32)
    with (
        gramary.Table.open(model, placement="host") as host,
        gramary.Table.open(model, placement="host=1MiB,disk") as split,
        gramary.Connector(split, max_tokens=64) as connector,
    ):
        row_ids = gramary.ngram_ids(host.spec, token_ids, starts)
        prompt = gramary.Batch(token_ids, starts, is_prefill=True)
        decode = gramary.Batch(token_ids, starts)
        yield {
            "lookup, host": lambda: host.lookup(row_ids),
            "embed, host": lambda: host.embed(token_ids, starts),
            "embed, host+disk": lambda: split.embed(token_ids, starts),
            "request+wait, host lane": lambda: connector.wait(connector.request(prompt)),
            "request+wait, stream lane": lambda: connector.wait(connector.request(decode)),
        }


def count() -> dict[str, Passage]:
    """Returns what each public call passes through."""
    with public_calls() as calls:
        return {name: trace(call) for name, call in calls.items()}


def main() -> None:
    """Prints the counts as a table."""
    print("| call (CPU, warm) | Python calls | files |\n|---|---:|---:|")
    for name, passage in count().items():
        print(f"| `{name}` | {passage.calls} | {passage.files} |")


if __name__ == "__main__":
    main()
