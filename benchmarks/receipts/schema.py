"""Receipts: measured results with all that is needed to repeat them (JSON).

A receipt is one run of one benchmark. Its cases each time several candidates over the same work,
in alternation, in one process; the correctness check ran first. Every raw sample is kept, and the
summary numbers are recomputed when a receipt is read, so that none can be edited by hand. Behind
the head of `receipt_head.py`, `cases` is a list of

    name         e.g. "fp8 8192 tokens"
    parameters   sizes and seeds, flat
    unit         "us" or "bytes": lower is better in both
    timer        how samples were taken: "cpu", "cuda_graph", "cuda_events" or "peak_memory"
    cache        "cold" or "warm", and cache_note: what that means here
    check        {what, compared}: the equality shown before timing, and how many values
    bytes        {moved, floor, basis}: bytes that must move, the least time for them in `unit`
                 or null, and what the floor rests on
    baseline     the candidate that others are compared with
    candidates   {name: {samples, median, p20, p80}}
    ratios       {name: median / baseline's median}, for every other candidate
    targets      {name: {at_most, met}}, for candidates with a promise, about their ratio unless a
                 field `of` says otherwise: see `targets.py`

Tests, fuzzing and soaking are counted instead: `count_receipts.py`.
"""

from __future__ import annotations

import json
import math
import re
import socket
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.receipts import counts as count_receipts
from benchmarks.receipts.errors import ReceiptError
from benchmarks.receipts.head import require_fields, validate_head
from benchmarks.receipts.targets import Target, as_target, read_target

SCHEMA = "gramary.receipt/1"

_CASE = {
    "name": str,
    "parameters": dict,
    "unit": str,
    "timer": str,
    "cache": str,
    "cache_note": str,
    "check": dict,
    "bytes": dict,
    "baseline": str,
    "candidates": dict,
    "ratios": dict,
    "targets": dict,
}
_CHECK = {"what": str, "compared": int}
_BYTES = {"moved": int, "floor": (int, float, type(None)), "basis": str}
_SUMMARY = {"samples": list, "median": (int, float), "p20": (int, float), "p80": (int, float)}

UNITS = ("us", "bytes")
TIMERS = ("cpu", "cuda_graph", "cuda_events", "peak_memory")
CACHES = ("cold", "warm")


def summarise(samples: Sequence[float]) -> dict[str, Any]:
    """Returns the samples with their median and their 20 and 80 percentiles (nearest rank).

    Raises:
        ReceiptError: there is no sample, or one is not a finite number of at least 0.
    """
    _require_samples("samples", samples)
    ordered = sorted(samples)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return {
        "samples": list(samples),
        "median": statistics.median(ordered),
        "p20": rank(0.2),
        "p80": rank(0.8),
    }


def compare(
    candidates: Mapping[str, Sequence[float]],
    baseline: str,
    targets: Mapping[str, float | Target],
) -> dict[str, Any]:
    """Returns a case's `candidates`, `baseline`, `ratios` and `targets` from its raw samples.

    Args:
        candidates: samples of each candidate, in the case's unit.
        baseline: name of the candidate that the others are divided by.
        targets: what is promised for a candidate other than the baseline, where something is; a
            number is the largest ratio.

    Raises:
        ReceiptError: a name is unknown, something is promised of the baseline, or samples are
            missing or not numbers.
    """
    for name in (baseline, *targets):
        if name not in candidates:
            raise ReceiptError(f"{name!r} is no candidate; candidates are {sorted(candidates)}")
    if baseline in targets:
        raise ReceiptError(f"targets: the baseline {baseline!r} can have none")
    summaries = {name: summarise(samples) for name, samples in candidates.items()}
    base = summaries[baseline]["median"]
    if base == 0:
        raise ReceiptError(f"the baseline {baseline!r} has a median of 0; a ratio needs more")
    ratios = {
        name: summary["median"] / base for name, summary in summaries.items() if name != baseline
    }
    return {
        "baseline": baseline,
        "candidates": summaries,
        "ratios": ratios,
        "targets": {
            name: as_target(target).judge(summaries[name], base) for name, target in targets.items()
        },
    }


def validate(receipt: Any) -> None:
    """Checks a receipt against the schema that it names, and recomputes its summaries.

    Args:
        receipt: the parsed JSON document.

    Raises:
        ReceiptError: a field is missing, unknown, of the wrong type or out of its range, a
            summary does not follow from the samples, or a text holds an absolute path.
    """
    if isinstance(receipt, Mapping) and receipt.get("schema") == count_receipts.SCHEMA:
        count_receipts.validate(receipt)
        return
    validate_head(receipt, SCHEMA, "cases")
    for index, case in enumerate(receipt["cases"]):
        _validate_case(f"receipt.cases[{index}]", case)


def _validate_case(where: str, case: Any) -> None:
    require_fields(where, case, _CASE)
    for field, choices in (("unit", UNITS), ("timer", TIMERS), ("cache", CACHES)):
        if case[field] not in choices:
            raise ReceiptError(f"{where}.{field}: expected one of {choices}, got {case[field]!r}")
    require_fields(f"{where}.check", case["check"], _CHECK)
    if case["check"]["compared"] < 1:
        raise ReceiptError(f"{where}.check.compared: expected at least 1: nothing was checked")
    require_fields(f"{where}.bytes", case["bytes"], _BYTES)
    for name, summary in case["candidates"].items():
        require_fields(f"{where}.candidates.{name}", summary, _SUMMARY)
    targets = {
        name: read_target(f"{where}.targets.{name}", target)
        for name, target in case["targets"].items()
    }
    if len(case["candidates"]) < 2:
        raise ReceiptError(f"{where}.candidates: expected a baseline and one more candidate")
    recomputed = compare(
        {name: summary["samples"] for name, summary in case["candidates"].items()},
        case["baseline"],
        targets,
    )
    for field, expected in recomputed.items():
        if case[field] != expected:
            raise ReceiptError(
                f"{where}.{field}: does not follow from the samples: expected {expected}, "
                f"got {case[field]}"
            )


def write(receipt: Mapping[str, Any], path: str | Path) -> None:
    """Validates a receipt and writes it as JSON.

    Raises:
        ReceiptError: the receipt does not follow the schema, or names this host.
        OSError: the file cannot be written.
    """
    validate(receipt)
    text = json.dumps(receipt, indent=1, sort_keys=False) + "\n"
    host = socket.gethostname()
    if len(host) > 3 and re.search(rf"\b{re.escape(host)}\b", text):
        raise ReceiptError(f"receipt {receipt['name']!r}: holds this machine's host name")
    Path(path).write_text(text, encoding="utf-8")


def read(path: str | Path) -> dict[str, Any]:
    """Returns the receipt in a file, validated.

    Raises:
        ReceiptError: the file is no JSON, or does not follow the schema; the message names it.
        OSError: the file cannot be read.
    """
    try:
        receipt = json.loads(Path(path).read_text(encoding="utf-8"))
        validate(receipt)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ReceiptError(f"{Path(path).name}: no JSON: {error}") from error
    except ReceiptError as error:
        raise ReceiptError(f"{Path(path).name}: {error}") from error
    return dict(receipt)


def _require_samples(where: str, samples: Sequence[float]) -> None:
    if not samples:
        raise ReceiptError(f"{where}: expected at least one sample, got none")
    for sample in samples:
        is_number = isinstance(sample, (int, float)) and not isinstance(sample, bool)
        if not is_number or not math.isfinite(sample) or sample < 0:
            raise ReceiptError(f"{where}: expected finite numbers of at least 0, got {sample!r}")
