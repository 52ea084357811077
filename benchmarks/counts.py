"""Receipts of runs that are counted, not timed: tests, sanitizer, fuzzing, soak."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine


def parser(program: str) -> argparse.ArgumentParser:
    """Returns the options that all tools with a receipt of counts have."""
    made = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    made.add_argument("--revision", help="commit of an exported tree (default: ask git)")
    made.add_argument("--out", type=Path, help="receipt file (default: benchmarks/results/)")
    return made


def write_counts(
    name: str,
    sources: Iterable[str],
    command: Sequence[str],
    take_runs: Callable[[], list[dict[str, Any]]],
    *,
    revision: str | None = None,
    out: Path | None = None,
    smoke: bool = False,
) -> bool:
    """Takes runs, prints their failures and writes their receipt.

    Args:
        name: the receipt's name, and its file's stem.
        sources: glob patterns of the code that runs; it is hashed before.
        command: words to repeat the runs with; folders are cut off.
        take_runs: does the work; returns the runs as `count_receipts` describes them.
        revision: commit of an exported tree that was not changed; None asks git.
        out: the receipt's file; None is in benchmarks/results/.
        smoke: without `out` the receipt is only validated.

    Returns:
        Whether no run failed.

    Raises:
        ReceiptError: the runs do not follow the schema.
    """
    # Not at the top: a fuzzer must be there before gramary is imported.
    from benchmarks.receipts import counts as count_receipts
    from benchmarks.receipts import schema as receipts

    head = machine.describe_run(name, sources, command, revision, True if revision else None)
    runs = take_runs()
    failures = [failure for run in runs for failure in run["failures"]]
    print(*failures, sep="\n", end="\n" if failures else "")
    receipt = {"schema": count_receipts.SCHEMA, **head, "runs": runs}
    receipts.validate(receipt)
    if out is not None or not smoke:
        path = out or machine.RESULTS / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        receipts.write(receipt, path)
        print(f"receipt: {path.name}")
    return not failures
