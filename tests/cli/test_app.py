"""The command line's frame: one paragraph for an error, exit codes, version, help."""

import sys
import types
from collections.abc import Callable

import pytest
import typer

import gramary
from gramary.cli import app, main
from gramary.errors import CapacityError


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command line with one command `act` that calls a function of the test."""

    def run_with(action: Callable[[], None], *words: str) -> int:
        module = types.ModuleType("gramary.cli.act")
        module.act = lambda: action()
        monkeypatch.setitem(sys.modules, "gramary.cli.act", module)
        monkeypatch.setattr(app, "COMMANDS", ("act",))
        with pytest.raises(SystemExit) as left:
            main([*words])
        return left.value.code or 0

    return run_with


def raise_error(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


@pytest.mark.behaviour(36)
def test_an_error_is_one_paragraph_and_exit_code_2(run, capsys) -> None:
    """Behaviour 36: what went wrong and what to do next, without a traceback."""
    error = CapacityError("the tiers hold 3 rows of 5;\n  give host more, or end with disk")
    assert run(raise_error(error), "act") == 2
    output = capsys.readouterr()
    assert output.err == ("gramary: the tiers hold 3 rows of 5; give host more, or end with disk\n")
    assert output.out == ""


def test_debug_shows_the_traceback(run, capsys) -> None:
    assert run(raise_error(CapacityError("too small")), "--debug", "act") == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_system_error_names_the_file(run, capsys) -> None:
    error = FileNotFoundError(2, "No such file or directory", "model/config.json")
    assert run(raise_error(error), "act") == 2
    text = capsys.readouterr().err
    assert text == "gramary: model/config.json: No such file or directory (errno 2)\n"


@pytest.mark.behaviour(36)
@pytest.mark.parametrize(
    "error", [MemoryError("std::bad_alloc"), OSError(12, "Cannot allocate memory")]
)
def test_too_little_memory_says_what_to_do(run, capsys, error) -> None:
    """Behaviour 36: whoever ran out of it, the allocator or a mapping."""
    assert run(raise_error(error), "act") == 2
    text = capsys.readouterr().err
    assert text.startswith("gramary: too little memory (")
    assert "raise the limits of this process" in text


def test_an_unexpected_error_says_how_to_see_more(run, capsys) -> None:
    assert run(raise_error(KeyError("rows")), "act") == 2
    text = capsys.readouterr().err
    assert "unexpected KeyError: 'rows'" in text
    assert "--debug" in text
    assert "Traceback" not in text


def test_an_interrupt_leaves_quietly(run, capsys) -> None:
    assert run(raise_error(KeyboardInterrupt()), "act") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_command_may_choose_its_exit_code(run) -> None:
    assert run(raise_error(typer.Exit(1)), "act") == 1
    assert run(lambda: None, "act") == 0


def test_wrong_usage_is_exit_code_2(run, capsys) -> None:
    assert run(lambda: None, "no-such-command") == 2
    assert "no-such-command" in capsys.readouterr().err


def test_version(run, capsys) -> None:
    assert run(lambda: None, "--version") == 0
    assert capsys.readouterr().out == f"gramary {gramary.__version__}\n"


def test_every_command_has_help_of_its_own(capsys) -> None:
    for name in app.COMMANDS:
        with pytest.raises(SystemExit) as left:
            main([name, "--help"])
        assert left.value.code == 0
        assert f"gramary {name}" in capsys.readouterr().out
