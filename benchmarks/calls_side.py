"""One built package of several that are compared: a process that makes public calls on command.

    python -m benchmarks.calls_side     with the package's folder first on PYTHONPATH

Each line of its input is a JSON list, a method of `Side` and its arguments; each line of its output
is what that returned. It uses what every package has.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

import gramary
from tools.count_calls import public_calls

# Length of a sample.
SAMPLE_US = 10_000.0


class Side:
    """Public calls on tables of models/tiny, by this package.

    Args:
        calls: what can be timed, by name.
    """

    def __init__(self, calls: Mapping[str, Callable[[], object]]) -> None:
        self._calls = calls

    def describe(self) -> dict[str, object]:
        """Returns where the package lies, and the names of the calls."""
        return {"package": str(Path(gramary.__file__).parent), "calls": list(self._calls)}

    def digest(self, name: str) -> str:
        """Returns the hash of the rows that a call gives."""
        rows = self._calls[name]()
        assert isinstance(rows, torch.Tensor)
        return hashlib.sha256(rows.view(torch.uint8).numpy()).hexdigest()

    def time(self, name: str) -> float:
        """Returns the microseconds of one call, over some milliseconds of them."""
        call = self._calls[name]
        return _time(call, max(1, round(SAMPLE_US / max(_time(call, 20), 0.1))))


def _time(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(times):
        call()
    return (time.perf_counter_ns() - start) / times / 1e3


def main() -> None:
    """Answers until the input ends."""
    with public_calls() as calls:
        side = Side(calls)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(getattr(side, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
