"""The rooms point down: a file imports rooms above its own in the list, or its own; no circles."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import rooms

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "gramary"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_ROOT_MODULES = 12


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def imported_modules(path: Path) -> Iterator[str]:
    """Yields every module of the package that a file imports, also inside functions and by name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: use absolute imports"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in MODULES:
                    yield submodule
                elif node.module in MODULES:
                    yield str(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = node.args[0]
            if isinstance(name, ast.Constant) and name.value in MODULES:
                yield name.value


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


IMPORTS = {name: set(imported_modules(path)) - {name} for name, path in MODULES.items()}


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_down(name: str) -> None:
    own = room_of(name)
    if own in ("gramary", "__main__"):
        return
    order = list(rooms.ROOMS)
    assert own in order, f"{own} is no room; name it in tools/rooms.py"
    above = order[: order.index(own)]
    # The command line asks the package itself for its version.
    for other in {room_of(module) for module in IMPORTS[name]} - {own, "gramary"}:
        assert other in order, f"{name} imports gramary.{other}, which is no room"
        assert other in above, f"{name} imports {other}, a room below its own"


def test_no_file_imports_itself_through_others() -> None:
    """Takes away the files that import nothing that is left: a circle stays."""
    left = {name: set(imports) for name, imports in IMPORTS.items()}
    while ready := [name for name, imports in left.items() if not imports & left.keys()]:
        for name in ready:
            del left[name]
    assert not left, f"files of a circle, or importing one: {sorted(left)}"


def test_the_root_holds_few_modules() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_ROOT_MODULES


def test_every_room_exists() -> None:
    for name in rooms.ROOMS:
        assert f"gramary.{name}" in MODULES, f"{name} is a room in tools/rooms.py, not in the tree"


def test_the_page_holds_the_list() -> None:
    page = rooms.PAGE.read_text(encoding="utf-8")
    assert page == rooms.fill_page(page), "run: python tools/rooms.py"
    assert rooms.render_table() in page
