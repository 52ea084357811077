"""`gramary bench` runs the benchmarks of a source tree, and says where they are if not here."""

import os
import sys
from pathlib import Path

import pytest

from gramary.cli import main

REPOSITORY = Path(__file__).parent.parent.parent


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["bench", *words])
    return left.value.code or 0


@pytest.mark.behaviour(36)
def test_outside_of_a_source_tree_the_error_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behaviour 36: run it in a clone."""
    assert run("--tree", str(tmp_path)) == 2
    assert "in a clone of it" in capsys.readouterr().err


@pytest.mark.behaviour(13)
def test_an_unknown_benchmark_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """Behaviour 13: a name that means nothing is an error."""
    assert run("no_such_benchmark", "--tree", str(REPOSITORY)) == 2
    assert "no benchmark 'no_such_benchmark'" in capfd.readouterr().err


@pytest.mark.behaviour(13, 36)
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--plot", "picture.foo"), "--plot: expected a name that ends in .svg or .png or .pdf"),
        (("--plot", "nowhere/picture.svg"), "--plot: expected a file in a folder that is there"),
        (("--json", "nowhere/receipt.json"), "--json: expected a file in a folder that is there"),
        (("--json", "."), "--json: expected a file"),
        (("--trace", "nowhere/trace.json"), "argument --trace: expected a file in a folder"),
        (("--chunks", "0"), "argument --chunks: expected at least 1, got 0"),
        (("--repeats", "-1"), "argument --repeats: expected at least 1"),
        (("--placement", "nonsense"), "placement = tier"),
    ],
)
def test_what_a_benchmark_cannot_do_is_said_before_it_measures(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    problem: str,
) -> None:
    """Behaviours 13, 36: an error of one paragraph and code 2, not a traceback at the end."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    device = ("--smoke", "--device", "cpu", "--tree", str(REPOSITORY))
    assert run("overlap", *device, *words) == 2
    told = capfd.readouterr().err
    assert problem in told
    assert "Traceback" not in told
