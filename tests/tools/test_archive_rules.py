"""The archives of a release: what they hold, which Pythons and machines they are for."""

import dataclasses
import os
import platform
import zipfile
from pathlib import Path

import make_wheel
import pytest
from archive_rules import (
    ENTRY,
    Needs,
    core_pattern,
    faults_of_core,
    faults_of_sdist,
    faults_of_wheel,
    list_package,
    read_needs,
)
from interpreters import Interpreter
from scikit_build_core import build

from gramary.native import _core

ROOT = Path(make_wheel.ROOT)
TAG = f"cp312-abi3-manylinux_2_28_{platform.machine()}"
GOOD = Needs(
    frozenset({"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}),
    frozenset({"GLIBC_2.2.5", "GLIBC_2.28"}),
    frozenset({ENTRY}),
    "x86_64",
)
OLD = Interpreter("python3.11", (3, 11), False, True, None)
NEW = Interpreter("python3.13", (3, 13), False, True, None)


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tree as the folder that scikit-build-core works in."""
    monkeypatch.chdir(ROOT)
    return ROOT


def test_the_source_archive_holds_what_the_build_reads_and_nothing_else(
    tree: Path, tmp_path: Path
) -> None:
    path = tmp_path / build.build_sdist(str(tmp_path))
    native = [file.relative_to(tree).as_posix() for file in (tree / "csrc").rglob("*.*")]
    package = list_package(tree)
    assert list(faults_of_sdist(path, package, native)) == []
    assert list(faults_of_sdist(path, [*package, "gramary/more.py"], native)) == [
        "src/gramary/more.py is missing"
    ]


def test_a_wheel_holds_the_package_alone(tree: Path, tmp_path: Path) -> None:
    """Built without its core, which takes a minute; the rest of the names is that of a wheel."""
    name = build.build_wheel(str(tmp_path), {"wheel.cmake": "false"})
    faults = list(faults_of_wheel(tmp_path / name, "py3-none-any", list_package(tree)))
    assert [fault for fault in faults if not fault.startswith("the cores are [],")] == []


def write_wheel(folder: Path, names: list[str], tag: str = TAG) -> Path:
    path = folder / f"gramary-0.1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names:
            is_core = name.endswith(".so")
            wheel.writestr(name, Path(_core.__file__).read_bytes() if is_core else b"")
    return path


@pytest.mark.parametrize(
    "stray", ["benchmarks/results/disk.json", "tests/conftest.py", "gramary/tiny/config.json"]
)
def test_a_stray_file_and_a_missing_one_are_named(tmp_path: Path, stray: str) -> None:
    names = ["gramary-0.1.0.dist-info/METADATA", "gramary/native/_core.abi3.so", stray]
    faults = list(faults_of_wheel(write_wheel(tmp_path, names), TAG, ["gramary/table.py"]))
    assert f"{stray} does not belong into a wheel" in faults
    assert "gramary/table.py is missing" in faults


def test_a_wheel_of_another_name_or_with_another_core_is_refused(tmp_path: Path) -> None:
    one = "gramary/native/_core.cpython-312-x86_64-linux-gnu.so"
    faults = list(
        faults_of_wheel(write_wheel(tmp_path, [one], "cp312-cp312-linux_x86_64"), TAG, [])
    )
    assert any(fault.startswith("the name is gramary-0.1.0-cp312-cp312") for fault in faults)
    assert any(fault.startswith(f"the cores are ['{one}']") for fault in faults)


@pytest.mark.parametrize(("change", "fault"), [
    ({"libraries": frozenset({"libstdc++.so.6"})}, "the core needs libstdc++.so.6"),
    ({"libraries": frozenset({"libgcc_s.so.1"})}, "the core needs libgcc_s.so.1"),
    ({"libraries": frozenset({"liburing.so.2"})}, "the core needs liburing.so.2"),
    ({"versions": frozenset({"GLIBC_2.34"})}, "the core needs GLIBC_2.34"),
    ({"versions": frozenset({"GLIBC_3.0"})}, "the core needs GLIBC_3.0"),
    ({"versions": frozenset({"GLIBCXX_3.4.30"})}, "the core needs GLIBCXX_3.4.30"),
    ({"exports": frozenset({ENTRY, "_Znwm"})}, "the core exports _Znwm"),
    ({"exports": frozenset[str]()}, "the core exports nothing"),
    ({"machine": "aarch64"}, "the core is built for aarch64"),
])  # fmt: skip
def test_a_core_that_would_not_load_everywhere_is_refused(change, fault: str) -> None:
    assert list(faults_of_core(GOOD, "x86_64")) == []
    [found] = faults_of_core(dataclasses.replace(GOOD, **change), "x86_64")
    assert found.startswith(fault)


def test_the_core_in_use_shows_its_entry_alone() -> None:
    """Whatever compiler built it: its C++ runtime's symbols must not mix with the process's."""
    needs = read_needs(Path(_core.__file__).read_bytes())
    assert needs.exports == {ENTRY}
    assert needs.machine == platform.machine()
    assert "libc.so.6" in needs.libraries


def test_two_wheels_serve_every_python_from_3_11_on() -> None:
    wheels = make_wheel.plan([OLD, NEW], "aarch64")
    assert [wheel.tag for wheel in wheels] == [
        "cp311-cp311-manylinux_2_28_aarch64",
        "cp312-abi3-manylinux_2_28_aarch64",
    ]
    assert core_pattern(wheels[0].tag).endswith(r"_core\.cpython-311-aarch64-linux-gnu\.so")


@pytest.mark.parametrize("pythons", [
    [], [OLD], [NEW], [OLD, dataclasses.replace(NEW, has_headers=False)],
])  # fmt: skip
def test_a_missing_python_is_named_before_anything_is_built(pythons) -> None:
    with pytest.raises(SystemExit, match=r"with Python 3\.11 and with one of 3\.12 or newer"):
        make_wheel.plan(pythons, "x86_64")


def test_debian_s_machine_dependent_headers_come_without_the_system_s(tmp_path: Path) -> None:
    include = tmp_path / "usr" / "x86_64-linux-gnu" / "python3.11"
    include.mkdir(parents=True)
    (include / "pyconfig.h").touch()
    (include.parent / "stdio.h").touch()
    folder = make_wheel.link_multiarch(include, tmp_path / "build")
    assert (folder / "x86_64-linux-gnu" / "python3.11" / "pyconfig.h").exists()
    assert os.listdir(folder / "x86_64-linux-gnu") == ["python3.11"]
