"""Writes docs/measurements.md from the receipts in benchmarks/results/."""

from pathlib import Path
from typing import Any

from gramary import receipts

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = REPOSITORY / "docs" / "measurements.md"

HEAD = """\
# Measurements

<!-- Written by tools/write_measurements_page.py from the receipts in benchmarks/results/. -->

Each line is a median of a candidate and of its baseline, taken in alternation in one run after
their results were found equal; the ratio is candidate / baseline, so less is better. A receipt
holds every sample, the command, the revision, the versions and what was warm or cold.

"""
COLUMNS = "| work | candidate | median | baseline | median | ratio | promised | receipt |\n"
RULE = "|---|---|---:|---|---:|---:|---|---|\n"


def format_value(value: float, unit: str) -> str:
    """Returns a time or a size with a unit that fits it."""
    if unit == "bytes":
        return f"{value / 2**20:,.1f} MiB"
    for limit, divisor, name in ((1e3, 1, "µs"), (1e6, 1e3, "ms")):
        if value < limit:
            return f"{value / divisor:,.3g} {name}"
    return f"{value / 1e6:,.3g} s"


def render_rows(receipt: dict[str, Any], name: str) -> list[str]:
    """Returns a line for every candidate of a receipt beside its baseline."""
    rows = []
    for case in receipt["cases"]:
        unit, baseline = case["unit"], case["baseline"]
        base = format_value(case["candidates"][baseline]["median"], unit)
        for candidate, ratio in case["ratios"].items():
            target = case["targets"].get(candidate)
            median = format_value(case["candidates"][candidate]["median"], unit)
            promised = "" if target is None else f"≤ {target['at_most']:.3g}: "
            promised += "" if target is None else ("met" if target["met"] else "missed")
            rows.append(
                f"| {case['name']} ({case['cache']}) | {candidate} | {median} | {baseline} "
                f"| {base} | {ratio:.3f} | {promised} | `{name}` |\n"
            )
    return rows


def render_machine(receipt: dict[str, Any]) -> str:
    """Returns the machine and the revision of a receipt in a line."""
    hardware, versions = receipt["hardware"], receipt["versions"]
    gpus = {gpu["name"] for gpu in hardware["gpus"]}
    commit = receipt["revision"]["commit"]
    tree = {True: "", False: " with changes", None: " (state of the tree unknown)"}
    return (
        f"{', '.join(sorted(gpus)) or hardware['cpu']}, {hardware['num_cpus']} CPUs, torch "
        f"{versions['torch']}, revision {commit[:12] if commit else 'unknown'}"
        f"{tree[receipt['revision']['clean']]}, {receipt['taken_at'][:10]}"
    )


def render_page() -> str:
    """Returns the page, a section for each receipt."""
    page = HEAD
    for path in sorted(RESULTS.glob("*.json")):
        receipt = receipts.read(path)
        page += f"## {receipt['name']}\n\n{render_machine(receipt)}\n\n"
        page += COLUMNS + RULE + "".join(render_rows(receipt, path.name)) + "\n"
    return page.rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
