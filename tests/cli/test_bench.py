"""`gramary bench` runs the benchmarks of a source tree, and says where they are if not here."""

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
