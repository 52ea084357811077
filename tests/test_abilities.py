"""What tests need of a machine is asked in one place, and the answers are those of the kernel."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import abilities
import pytest
from children import run_child

TESTS = Path(__file__).parent
# Skips that are not about what the machine can do.
OTHER_REASONS = {
    "cli/test_hostile_arguments.py": "a number that means something to one of the options",
    "ple/test_prefix_cache.py": "the interpreter of kernels would take minutes for one case",
    "ple/test_run.py": "one case has a test of its own for a GPU",
    "test_empty_requests.py": "not every reader takes every batch and placement",
    "test_types.py": "mypy comes with the checks, not with the tests",
    "test_exports.py": "a tree on the path has no metadata to compare with",
}

DENIED = """
import errno
import abilities, seccomp

def missing(*names):
    for name in names:
        abilities.ABILITIES[name].cache_clear()
    return [abilities.why_missing(name) for name in names]

names = ("io_uring", "io_uring_registration")
assert missing(*names) == [None, None]
seccomp.forbid_io_uring(errno.ENOMEM, seccomp.IO_URING_REGISTER)
assert missing(*names) == [None, "io_uring_register: Cannot allocate memory"]
seccomp.forbid_io_uring(errno.EPERM, seccomp.IO_URING_ENTER)
assert missing("io_uring") == ["io_uring_enter: Operation not permitted"]
seccomp.forbid_io_uring(errno.ENOSYS)
assert missing(*names) == ["io_uring_setup: Function not implemented"] * 2
seccomp.forbid_direct_io(errno.EINVAL)
(why,) = missing("direct_io")
assert "O_DIRECT: Invalid argument" in why
"""


def item(*marks: pytest.MarkDecorator) -> Any:
    """Returns what stands for a test with these markers."""
    added: list[pytest.MarkDecorator] = []
    return SimpleNamespace(
        nodeid="tests/test_a.py::test_a",
        iter_markers=lambda name: [mark.mark for mark in marks if mark.name == name],
        get_closest_marker=lambda name: next((m for m in marks if m.name == name), None),
        add_marker=added.append,
        added=added,
    )


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`without(name, why)`: a machine that lacks an ability."""
    return lambda name, why: monkeypatch.setitem(abilities.ABILITIES, name, lambda: why)


def test_what_lacks_an_ability_is_skipped_with_the_reason(
    pytestconfig: pytest.Config, without: Any
) -> None:
    without("io_uring", "the kernel says no")
    without("seccomp", None)
    without("gpu", "no CUDA device here")
    tests = [
        item(pytest.mark.needs("seccomp", "io_uring"), pytest.mark.gpu),
        item(pytest.mark.gpu),
        item(pytest.mark.needs("seccomp")),
        item(),
    ]
    abilities.skip_without_abilities(pytestconfig, tests)
    reasons = [[mark.kwargs["reason"] for mark in test.added] for test in tests]
    told = ["needs io_uring: the kernel says no"], ["needs gpu: no CUDA device here"]
    assert reasons == [*told, [], []]
    with pytest.raises(pytest.skip.Exception, match="needs io_uring: the kernel says no"):
        abilities.ask_for("io_uring")
    abilities.ask_for("seccomp")


def test_an_ability_that_there_is_not_is_an_error(pytestconfig: pytest.Config) -> None:
    with pytest.raises(pytest.UsageError, match=r"test_a: needs 'wings'; known are io_uring"):
        abilities.skip_without_abilities(pytestconfig, [item(pytest.mark.needs("wings"))])


@pytest.mark.needs("io_uring_registration", "seccomp", "direct_io")
def test_a_kernel_that_refuses_is_told_from_one_that_does_not() -> None:
    done = run_child(DENIED)
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("shared_memory")
def test_a_tmpfs_keeps_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "_temporary", ["/dev/shm"])
    probe = abilities.ABILITIES["droppable_cache"].__wrapped__
    assert "keeps its pages" in probe()


def test_every_ability_is_one_that_a_test_asks_for() -> None:
    text = "\n".join(path.read_text() for path in TESTS.rglob("*.py"))
    asked = set(re.findall(r'"(\w+)"', "".join(re.findall(r"(?:needs|ask_for)\(([^)]*)\)", text))))
    asked |= set(re.findall(r"pytest\.mark\.(gpu|two_gpus)\b", text)) | {"avx2", "avx512"}
    assert asked >= set(abilities.ABILITIES)


def test_nothing_else_looks_at_the_machine_to_skip() -> None:
    own = {"support/abilities.py", Path(__file__).name} | OTHER_REASONS.keys()
    skips = re.compile(r"pytest\.skip\(|mark\.skipif|importorskip|mark\.skip\b")
    found = [path for path in TESTS.rglob("*.py") if skips.search(path.read_text())]
    names = {str(path.relative_to(TESTS)) for path in found}
    assert names == own, "ask for an ability of tests/support/abilities.py instead"
