"""Fills the last column of docs/behaviours.md with the tests that carry each number."""

import ast
import re
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "behaviours.md"
ROW = re.compile(r"^\| (\d+) \|([^|]*)\|([^|]*)\|$", re.MULTILINE)


def find_marked_tests() -> dict[int, set[str]]:
    """Returns the test files that carry each behaviour's number."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.behaviour":
                for number in node.args:
                    found[ast.literal_eval(number)].add(str(path.relative_to(REPOSITORY)))
    return found


def fill_page(page: str, marked: dict[int, set[str]]) -> str:
    """Returns the page with the last column of every row replaced."""

    def fill(row: re.Match[str]) -> str:
        files = sorted(marked.get(int(row[1]), ()))
        return f"| {row[1]} |{row[2]}| {', '.join(f'`{file}`' for file in files) or '—'} |"

    return ROW.sub(fill, page)


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8"), find_marked_tests()), "utf-8")
