"""Lists numbers in README.md and docs/ that look measured and have no receipt near them.

    python -m tools.check_numbers

A number with a unit of time, rate or ratio (`2.5 µs`, `20 GB/s`, `35 M rows/s`, `3 times`, `1.4x`)
is a measurement unless it stands in backticks (settings, examples) or in a code block. Its
paragraph, or its table, has to name a receipt of benchmarks/results/, such as `embed_gpu.json`; or
the paragraph says that it was chosen, not measured, with the comment <!-- chosen -->.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import RESULTS, ROOT

# Written from receipts by a tool, every line with its receipt.
GENERATED = ("measurements.md",)
CHOSEN = "<!-- chosen -->"
_UNIT = (
    r"(?:ns|µs|us|ms|s|seconds?|minutes?|hours?|x|×|times|[kKMGT]i?B/s|[kM]?\s?(?:tokens|rows)/s"
    r"|[kM]/s|IOPS)"
)
_NUMBER = re.compile(rf"(?<![\w.`/-])\d[\d.,]*\s?{_UNIT}(?![\w`])")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_RECEIPT = re.compile(r"`([\w-]+\.json)`")


def pages() -> list[Path]:
    """Returns the pages that are looked at."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [page for page in found if page.name not in GENERATED]


def find_unfounded(text: str, receipts: set[str]) -> Iterator[tuple[int, str]]:
    """Yields (line, number) of every measured number without a receipt near it.

    Args:
        text: a page in Markdown.
        receipts: file names that count as receipts.
    """
    # Code keeps its lines, so that the others keep their numbers.
    prose = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", prose):
        named = set(_RECEIPT.findall(paragraph)) & receipts
        if not named and CHOSEN not in paragraph:
            for found in _NUMBER.finditer(
                re.sub(r"`[^`\n]*`", lambda c: "`" * len(c[0]), paragraph)
            ):
                yield line + paragraph[: found.start()].count("\n"), found[0]
        line += paragraph.count("\n")


def main() -> int:
    """Prints what was found; returns 1 if anything was."""
    receipts = {path.name for path in RESULTS.glob("*.json")}
    count = 0
    for page in pages():
        for line, number in find_unfounded(page.read_text(encoding="utf-8"), receipts):
            print(f"{page.relative_to(ROOT)}:{line}: {number!r} names no receipt")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
