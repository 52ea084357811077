"""Writes docs/measurements.md from the receipts: python -m tools.write_measurements_page

The README's rows, which are some of the page's, are written anew too.
"""

import functools
import re
from typing import Any

from benchmarks.machine import RESULTS, ROOT
from benchmarks.receipts import schema as receipts
from benchmarks.receipts.targets import describe_target

PAGE = ROOT / "docs" / "measurements.md"
README = ROOT / "README.md"

HEAD = """\
# Measurements

<!-- Written by tools/write_measurements_page.py from the receipts in benchmarks/results/. -->

Each line is a median of a candidate and of its baseline, taken in alternation in one run after
their results were found equal. ratio = candidate / baseline; lower is better. A promise
without a unit is about the ratio, one with a plus sign about the difference of the medians, one
with "worst" about the largest sample, any other about the candidate's median. A receipt holds every
sample, the command, the revision, the versions and what was warm or cold. Tests, fuzzing and
soaking are counted; how often within one file stands in the receipt.

On a GPU, `vllm` is vLLM 0.33.0's own functions in the same run, uniform random tokens, CUDA
graphs. A decode step through a `Connector` is `request` and `wait` in a captured graph, with
nothing between them to hide behind; `device` is the same step with all rows in GPU memory. A graph
holds 20 steps with tokens of their own and is replayed, so the CPU's caches may hold the rows.
"Idle" is how long a prefill chunk waits for its rows. The machines with two CPU cores are shared,
so only ratios count there.

"""
COLUMNS = (
    "| work | candidate | candidate median | baseline | baseline median | ratio "
    "| promised | receipt |\n"
)
RULE = "|---|---|---:|---|---:|---:|---|---|\n"
COUNT_COLUMNS = "| run | counted | failures | length | receipt |\n"
COUNT_RULE = "|---|---|---:|---:|---|\n"
# Counts of a run that are of one file or module of it: too many for a line.
_OF_ONE_FILE = re.compile(r"^src/|^passed in tests\.")


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
            promised = target and describe_target(
                target, functools.partial(format_value, unit=unit)
            )
            rows.append(
                f"| {case['name']} ({case['cache']}) | {candidate} | {median} | {baseline} "
                f"| {base} | {ratio:.3f} | {promised or ''} | `{name}` |\n"
            )
    return rows


def render_counts(receipt: dict[str, Any], name: str) -> list[str]:
    """Returns a line for every run of a receipt of counts."""
    rows = []
    for run in receipt["runs"]:
        counts = ", ".join(
            f"{count:,} {what}"
            for what, count in run["counts"].items()
            if not _OF_ONE_FILE.match(what)
        )
        failures = len(run["failures"]) or "none"
        rows.append(
            f"| {run['name']} | {counts} | {failures} | {run['seconds']:,.0f} s | `{name}` |\n"
        )
    return rows


def render_results(receipt: dict[str, Any], name: str) -> list[str]:
    """Returns the rows of a receipt of either kind."""
    return render_rows(receipt, name) if "cases" in receipt else render_counts(receipt, name)


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
        page += COLUMNS + RULE if "cases" in receipt else COUNT_COLUMNS + COUNT_RULE
        page += "".join(render_results(receipt, path.name)) + "\n"
    return page.rstrip("\n") + "\n"


def refresh_rows(text: str, page: str) -> str:
    """Returns a text with its rows as they stand in the page now.

    A row is known by its work, candidate, baseline and receipt.

    Raises:
        KeyError: the page has no such row any more.
    """
    rows = {_key(row): row for row in _rows_of(page)}
    for row in _rows_of(text):
        text = text.replace(row, rows[_key(row)])
    return text


def _rows_of(text: str) -> list[str]:
    return re.findall(r"^\|.*`[\w.-]+\.json` \|$", text, re.MULTILINE)


def _key(row: str) -> tuple[str, ...]:
    cells = [cell.strip() for cell in row.split("|")]
    return cells[1], cells[2], cells[4], cells[-2]


def main() -> None:
    """Writes both pages."""
    page = render_page()
    PAGE.write_text(page, encoding="utf-8")
    README.write_text(refresh_rows(README.read_text("utf-8"), page), encoding="utf-8")


if __name__ == "__main__":
    main()
