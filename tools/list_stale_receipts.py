"""Lists receipts whose measured code has changed since: python -m tools.list_stale_receipts

A receipt holds the hash of every source of what it measured. One that is stale still says what was
true of its revision; it is measured again, not edited. Nothing fails here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, ROOT
from benchmarks.receipts import schema as receipts


def changed_sources(receipt: Mapping[str, Any], root: Path = ROOT) -> list[str]:
    """Returns the sources of a receipt that are gone or differ from what was measured."""

    def digest(name: str) -> str | None:
        path = root / name
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None

    return [name for name, expected in receipt["sources"].items() if digest(name) != expected]


def main() -> None:
    """Prints a line for each stale receipt."""
    for path in sorted(RESULTS.glob("*.json")):
        changed = changed_sources(receipts.read(path))
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            print(f"warning: {path.name}: changed since: {', '.join(changed[:3])}{more}")


if __name__ == "__main__":
    main()
