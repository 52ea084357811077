"""Writes docs/measurements.md from the receipts: python -m tools.write_measurements_page

The README's rows, which are some of the page's, are written again too.
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

Each line compares a candidate with its baseline: medians, measured in alternation in one run,
after their results were found equal. ratio = candidate / baseline; lower is better. A promise
without a unit limits the ratio, one with a plus sign the difference of the medians, one with
"worst" the largest sample, any other the candidate's median. "Cold": the rows, or the files, are in
no cache; the receipt says which cache is meant. A receipt holds every sample, the command, the
revision and the versions. Tests, fuzzing and soaking are counted; the receipt has the counts of
each file.

- `vllm` is vLLM 0.33.0's own functions in the same run, with uniform random tokens in CUDA graphs.
- "Embed" reads the rows of a batch's tokens; "state of the layer" is `ple.run`.
- A "decode step" is `request` and `wait` of a `Connector` in a captured graph, with nothing between
  them to hide behind; `device` is the same step with all rows in GPU memory. A graph holds 20 steps
  with tokens of their own and is replayed, so the CPU's caches may hold the rows.
- "Wait of a prefill chunk" is how long the layer stands still because rows are not there yet.
- The machines with two CPU cores are shared, so only ratios count there.

![Time against batch size on a GPU, by placement](pictures/embed_gpu.svg)

"""
COLUMNS = (
    "| work | cache | candidate | its median | baseline | baseline's median | ratio | promised "
    "| receipt |\n"
)
RULE = "|---|---|---|---:|---|---:|---:|---|---|\n"
COUNT_COLUMNS = "| run | counted | failures | length | receipt |\n"
COUNT_RULE = "|---|---|---:|---:|---|\n"
# Counts of a run that are of one file or module of it: too many for a line.
_OF_ONE_FILE = re.compile(r"^src/|^passed in tests\.")

# Names of cases in receipts, in words for readers: which benchmark's, what is replaced, by what.
_NAMES = (
    (".*", r", (?:cold|warm)\b", ""),  # a column says it
    (".*", r"\b1 (token|request)(?:s|\(s\))", r"1 \1"),
    (".*", r"\(s\)", "s"),
    (".*", r"^idle a chunk", "wait of a prefill chunk"),
    (".*", r" whose gather is hidden", ", read early enough"),
    ("embed_gpu", r"^device ", "embed from GPU memory, "),
    ("embed_gpu|gpu_host_path", r"^host (fp8)?,? ?", r"embed from host memory, \1 "),
    ("embed_gpu", r"^split ", "embed from GPU and host memory, "),
    ("embed_cpu", r"^", "embed, "),
    ("gpu_state|state_cpu", r"^(?=decode|prefill)", "state of the layer, "),
    ("ngram_ids", r"^", "hash "),
    (".*", r"  +", " "),
)


def plain_name(benchmark: str, name: str) -> str:
    """Returns what a case of a benchmark is called in tables."""
    for owner, pattern, words in _NAMES:
        if re.fullmatch(owner, benchmark):
            name = re.sub(pattern, words, name)
    return name


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
        work = plain_name(receipt["name"], case["name"])
        base = format_value(case["candidates"][baseline]["median"], unit)
        for candidate, ratio in case["ratios"].items():
            target = case["targets"].get(candidate)
            median = format_value(case["candidates"][candidate]["median"], unit)
            promised = target and describe_target(
                target, functools.partial(format_value, unit=unit)
            )
            rows.append(
                f"| {work} | {case['cache']} | {candidate} | {median} | {baseline} | {base} "
                f"| {ratio:.3f} | {promised or ''} | `{name}` |\n"
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

    A row is known by its work, cache, candidate, baseline and receipt.

    Raises:
        KeyError: the page has no such row any more.
    """
    rows = {row_key(row): row for row in rows_of(page)}
    for row in rows_of(text):
        text = text.replace(row, rows[row_key(row)])
    return text


def rows_of(text: str) -> list[str]:
    """Returns the rows of a text that name a receipt."""
    return re.findall(r"^\|.*`[\w.-]+\.json` \|$", text, re.MULTILINE)


def row_key(row: str) -> tuple[str, ...]:
    """Returns what a row of a table of cases is known by."""
    cells = [cell.strip() for cell in row.split("|")]
    return cells[1], cells[2], cells[3], cells[5], cells[-2]


def main() -> None:
    """Writes both pages."""
    page = render_page()
    PAGE.write_text(page, encoding="utf-8")
    README.write_text(refresh_rows(README.read_text("utf-8"), page), encoding="utf-8")


if __name__ == "__main__":
    main()
