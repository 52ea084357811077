"""Receipts of runs that are counted, not timed against a baseline: tests, fuzzing, soaking.

Behind the head of `receipt_head.py`, `runs` is a list of

    name         e.g. "GPU tests"
    parameters   what was chosen: markers, seeds, sizes; flat
    seconds      how long the run took
    counts       {what: how many}: tests passed, executions, requests answered, ...
    failures     a line for each failure; an empty list is a run that passed
"""

from __future__ import annotations

import math
from typing import Any

from benchmarks.receipts.errors import ReceiptError
from benchmarks.receipts.head import require_fields, validate_head

SCHEMA = "gramary.receipt.counts/1"

_RUN = {"name": str, "parameters": dict, "seconds": (int, float), "counts": dict, "failures": list}


def validate(receipt: Any) -> None:
    """Checks a receipt of counts against the schema of this module.

    Args:
        receipt: the parsed JSON document.

    Raises:
        ReceiptError: a field is missing, unknown, of the wrong type or out of its range, nothing
            was counted, or a text holds an absolute path.
    """
    validate_head(receipt, SCHEMA, "runs")
    for index, run in enumerate(receipt["runs"]):
        _validate_run(f"receipt.runs[{index}]", run)


def _validate_run(where: str, run: Any) -> None:
    require_fields(where, run, _RUN)
    if not math.isfinite(run["seconds"]) or run["seconds"] < 0:
        raise ReceiptError(f"{where}.seconds: expected a length of time, got {run['seconds']!r}")
    for name, count in run["counts"].items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ReceiptError(f"{where}.counts.{name}: expected a count, got {count!r}")
    if not any(run["counts"].values()):
        raise ReceiptError(f"{where}.counts: expected something that was counted, got nothing")
    for failure in run["failures"]:
        if not isinstance(failure, str):
            raise ReceiptError(f"{where}.failures: expected lines of text, got {failure!r}")
