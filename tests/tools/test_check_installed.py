"""The check that nothing in .venv was installed by hand."""

from pathlib import Path

import pytest

from tools.check_installed import OF_SET_UP, close_over, find_foreign_folders, find_strangers
from tools.list_requirements import list_build_requirements, list_everything


def install(folder: Path, name: str, *requirements: str) -> None:
    """Puts a distribution without files into a folder."""
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
    (about / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    install(
        tmp_path, "app", "Lib.One>=1", "extra-only; extra == 'more'", "gone; python_version<'3'"
    )
    install(tmp_path, "lib-one", "app[more]; extra == 'loop'")
    install(tmp_path, "extra-only", "deep")
    for name in ("deep", "gone", "by-hand"):
        install(tmp_path, name)
    return tmp_path


@pytest.mark.parametrize(("wanted", "strangers"), [
    (["app>=1"], ["by-hand", "deep", "extra-only", "gone"]),
    (["app[more]"], ["by-hand", "gone"]),
    (["app", "lib_one[loop]"], ["by-hand", "gone"]),
    (["app[more]", "By.Hand", "gone", "not-installed"], []),
])  # fmt: skip
def test_what_nothing_asks_for_is_named(
    folder: Path, wanted: list[str], strangers: list[str]
) -> None:
    assert find_strangers(wanted, [str(folder)]) == strangers


def test_a_folder_from_elsewhere_is_named(tmp_path: Path) -> None:
    own, other = tmp_path / "venv", tmp_path / "venv-of-another"
    for path in (own / "site-packages", other):
        path.mkdir(parents=True)
    path = [str(own / "site-packages"), str(other), str(tmp_path / "missing.zip")]
    assert list(find_foreign_folders(path, [own])) == [str(other)]


def test_what_the_tests_import_is_asked_for() -> None:
    wanted = [*list_everything(), *list_build_requirements(), *OF_SET_UP]
    asked = close_over(wanted, [])
    assert asked >= {"torch", "pytest", "nanobind", "peft", "ruff", "cuda-bindings"}
