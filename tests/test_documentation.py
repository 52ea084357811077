"""The written pages agree with the code: settings, behaviours, docstrings, links."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.receipts import schema as receipts
from gramary.cli.app import COMMANDS

REPOSITORY = Path(__file__).parent.parent
SOURCES = sorted((REPOSITORY / "src" / "gramary").rglob("*.py"))
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *REPOSITORY.glob("docs/*.md")]
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")


def load_tool(name: str) -> object:
    """Returns a module of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.behaviour(35)
def test_the_settings_page_is_the_table_in_the_code() -> None:
    """Behaviour 35: every variable with its range is in one documented table."""
    page = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    expected = load_tool("write_settings_page").render_page()
    assert page == expected, "run: python tools/write_settings_page.py"


def public_definitions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yields the public functions, classes and methods of a file by dotted name."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST]]:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                if node.name.startswith("_"):
                    continue
                yield f"{prefix}{node.name}", node
                if isinstance(node, ast.ClassDef):
                    yield from walk(node.body, f"{prefix}{node.name}.")

    yield from walk(ast.parse(path.read_text(encoding="utf-8")).body, "")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_public_name_has_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{path} has no docstring"
    missing = [name for name, node in public_definitions(path) if not ast.get_docstring(node)]
    assert not missing, f"{path.name}: no docstring: {', '.join(missing)}"


def claimed_tests() -> dict[int, set[str]]:
    """Returns the test files that docs/behaviours.md names for each number."""
    page = (REPOSITORY / "docs" / "behaviours.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
    return {int(number): set(re.findall(r"`(tests/[\w/.]+)`", tests)) for number, tests in rows}


def test_every_behaviour_claimed_is_shown_by_the_tests_named() -> None:
    marked = load_tool("fill_behaviours_page").find_marked_tests()
    claimed = claimed_tests()
    assert sorted(claimed) == list(range(1, 37)), "one row for each of the 36 behaviours"
    assert set(marked) <= set(claimed), "a test carries an unknown number"
    for number, files in claimed.items():
        unshown = files - marked[number]
        assert not unshown, f"behaviour {number}: no test marked with it in {sorted(unshown)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target} does not exist"


def test_the_way_of_a_row_leads_to_files_and_names() -> None:
    """What the steps of architecture.md name in brackets is defined in the file beside it."""
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    way = page[page.index("## The way of a token") : page.index("## Rooms")]
    package = REPOSITORY / "src" / "gramary"
    files = re.findall(r"`([a-z_/]+\.py)`", way)
    assert len(files) > 15
    for file in files:
        assert (package / file).exists(), file
    named = re.findall(r"`([a-z_/]+\.py)` \(`(?:\w+\.)?(\w+)`\)", way)
    assert len(named) >= 3
    for file, name in named:
        assert f"def {name}(" in (package / file).read_text(encoding="utf-8"), f"{file}: no {name}"


def test_the_python_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name in ("Table.open", "integrations.transformers", "Connector", "PLELayer"):
        assert any(name in block for block in blocks), f"no example of {name}"
    for block in blocks:
        assert "models/tiny" in block
        exec(block, {"__name__": "readme"})


def test_the_python_of_the_page_on_transformers_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    page = (REPOSITORY / "docs" / "transformers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(block, {"__name__": "page"})


def test_the_readme_is_short() -> None:
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 130
    assert len(re.findall(r"^\|.*`[\w.-]+\.json` \|$", page, re.MULTILINE)) <= 8


def test_the_readme_leads_to_every_page() -> None:
    links = LINK.findall((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    missing = {str(page.relative_to(REPOSITORY)) for page in PAGES[1:]} - set(links)
    assert not missing, f"README.md has no link to {sorted(missing)}"


def test_the_files_that_pages_name_are_there() -> None:
    """A path in backticks exists, from the top of the tree, or of the package or the core."""
    source = REPOSITORY / "src"
    folders = (REPOSITORY, source, source / "gramary", REPOSITORY / "csrc")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found = re.findall(r"`((?:src/gramary|csrc|tests|tools|benchmarks)/[\w./*]+)`", text)
        found += re.findall(r"`([a-z_]\w*(?:/\w+)+\.(?:py|[ch]pp))`", text)
        for path in found:
            is_there = any(any(folder.glob(path)) for folder in folders)
            assert is_there, f"{page.name}: {path} does not exist"


def test_the_readme_names_every_command() -> None:
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"gramary {command}" in page, f"README.md does not show gramary {command}"


def test_every_measured_line_is_that_of_its_receipt() -> None:
    tool = load_tool("write_measurements_page")
    measured = {
        row.strip()
        for path in machine.RESULTS.glob("*.json")
        for row in tool.render_results(receipts.read(path), path.name)
    }
    for page in (REPOSITORY / "README.md", REPOSITORY / "docs" / "measurements.md"):
        rows = re.findall(r"^\|.*`[\w.-]+\.json` \|$", page.read_text("utf-8"), re.MULTILINE)
        assert rows, page
        for row in rows:
            assert row in measured, (
                f"{page.name}: no receipt says this; run python -m tools.write_measurements_page: "
                f"{row}"
            )
