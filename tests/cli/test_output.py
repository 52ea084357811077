"""Kind 11: output that the terminal cannot encode, that has no reader, or nowhere to go."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run_command, run_process

from gramary.cli.output import StandardOutput, escape_controls, shown
from gramary.errors import GramaryError

EXIT_READER_GONE = 141
# A reader that went away, and other ends of standard output, before the command begins.
GONE = "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1)"
CLOSED = "import os; os.close(1)"
FULL = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"


@pytest.fixture
def model(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(codec="fp8")


def words_of(command: str, model: Path) -> list[str]:
    """Returns a whole command line of a command."""
    words = {
        "doctor": ["--model", str(model)],
        "inspect": [str(model)],
        "plan": [str(model), "--placement", "host=1KiB,disk"],
        "generate": ["--model", str(model), "--prompt", "né → 雪 \U0001f409", "--max-new-tokens",
                     "2", "--placement", "disk", "--compare", "resident"],
        "--help": [],
        "--version": [],
    }[command]  # fmt: skip
    return [command, *words]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("command", ["doctor", "inspect", "plan", "generate"])
def test_kind_11_any_encoding_takes_what_a_command_says(
    model: Path, monkeypatch: pytest.MonkeyPatch, command: str, encoding: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    assert run_command(*words_of(command, model)) == 0
    text = written.getvalue().decode(encoding)
    assert text.endswith("\n")
    if command == "generate":
        snow = {"utf-8": "né → 雪", "latin-1": "né \\u2192 \\u96ea"}
        assert text.startswith(snow.get(encoding, "n\\xe9 \\u2192 \\u96ea"))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_kind_11_an_error_too_is_said_in_any_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(written, encoding, errors="strict"))
    assert run_command("inspect", tmp_path / "雪") == 2
    assert "\\u96ea" in written.getvalue().decode(encoding)


@pytest.mark.parametrize("command", ["--help", "--version", "doctor", "inspect", "plan"])
def test_kind_11_a_reader_that_went_away_is_no_difference(model: Path, command: str) -> None:
    """1 would say that `generate --compare` found one; 141 is what a shell makes of SIGPIPE."""
    done = run_process(GONE, words_of(command, model))
    assert (done.returncode, done.stderr) == (EXIT_READER_GONE, "")


def test_kind_11_a_comparison_without_a_reader_is_no_difference(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w", encoding="utf-8", closefd=False) as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert run_command(*words_of("generate", model)) == EXIT_READER_GONE
        assert capsys.readouterr().err == ""
        # What it still holds goes to a file that takes it.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, writes)
    os.close(nothing)
    os.close(writes)


@pytest.mark.parametrize(("before", "told"), [
    (CLOSED, "Bad file descriptor"), (FULL, "No space left"),
], ids=["closed", "full"])  # fmt: skip
@pytest.mark.parametrize("command", ["--version", "plan"])
def test_kind_11_output_that_is_lost_is_an_error(
    model: Path, command: str, before: str, told: str
) -> None:
    done = run_process(before, words_of(command, model))
    assert done.returncode == 2
    assert done.stderr.startswith(f"gramary: standard output: {told}")
    assert done.stderr.count("\n") == 1


def test_kind_11_a_closed_standard_error_is_no_file_of_ours(model: Path, tmp_path: Path) -> None:
    """The next file to be opened would be descriptor 2, and take every warning: the pack's."""
    pack = tmp_path / "table.pack"
    shout = "import os, atexit; os.close(2); atexit.register(os.system, 'echo loud >&2')"
    assert run_process(shout, ["pack", model, pack]).returncode == 0
    assert run_process("", ["verify", pack]).returncode == 0


def test_kind_11_text_is_escaped_where_it_would_act() -> None:
    assert escape_controls("a\x1b[2J\x07b\x7f\x9b\tc\n") == "a\\x1b[2J\\x07b\\x7f\\x9b\tc\n"
    assert shown("a\nb\udcff\u202eé") == "a\\nb\\xff\\u202eé"
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "utf-8", write_through=True)
    StandardOutput(stream).write("\ud800\udc80\x1b")
    assert written.getvalue() == b"\\ud800\\x80\\x1b"
    with pytest.raises(GramaryError, match="standard output: Bad file descriptor"):
        StandardOutput(None).write("lost")
