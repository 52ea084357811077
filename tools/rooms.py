"""The rooms of the package, from the ground up: the one list that the layer test enforces.

`docs/architecture.md` holds the table that `render_table` makes of it; `make pages` writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "architecture.md"

# A file imports rooms that stand above its own here, and files of its own room; never a circle.
ROOMS = {
    "errors": "the exception tree",
    "arguments": "checks of what callers pass",
    "process": "the end of the interpreter, forks, descriptors, and what stays in one process",
    "settings": "environment variables, read once and range-checked",
    "stats": "counters that a table reports",
    "flat_batch": "`FlatBatch`: one forward's tokens, checked once at the public calls",
    "native": "typed Python over the C++ core (`csrc/`)",
    "lifetime": "`close` waits for users, dependents close first",
    "tracing": "spans, trace files, timelines",
    "machine": "what this machine has free: memory, CPUs, cgroups",
    "model": "what a table is: its configuration, hash and codecs",
    "pipeline": "which pipeline stage owns which table",
    "files": "rows in files: their layout, reading in order, checkpoints and packs",
    "placement": "the grammar of placements, and pure planning",
    "ops": "operations, one file each; `reference`, `_cpu` and `_triton` are their backends",
    "batch": "`Batch`: a flat batch, and what a scheduler knows of it",
    "tiers": "rows in device memory, host memory or on disk",
    "storage": "a plan made memory, and the rows on their way into it",
    "reading": "rows of one table out of its tiers, by device",
    "table": "`Table`",
    "ple": "the PLE state operations: plan, bind, run, export",
    "slots": "`SlotPool`: which request's window lies where",
    "metrics": "counters for Prometheus",
    "offload": "`Connector`: rows requested early, by threads or a worker process",
    "layer": "`PLELayer`",
    "integrations": "engines that this library serves",
    "cli": "the command line",
}

_BEGIN, _END = "<!-- rooms: begin -->\n", "<!-- rooms: end -->"


def render_table() -> str:
    """Returns the rooms as a Markdown table, in their order."""
    lines = [f"| `{name}` | {what} |" for name, what in ROOMS.items()]
    return "\n".join(("| room | what it holds |", "|---|---|", *lines)) + "\n"


def fill_page(page: str) -> str:
    """Returns the page with the table between its markers replaced."""
    pattern = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    return pattern.sub(lambda _: _BEGIN + render_table() + _END, page)


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
