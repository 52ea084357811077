"""Kind 19: a limit on processes leaves few threads, or none at all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from children import run_child
from commands import WHOLE, run_command
from strangers import folder_for_all

from gramary.cli import thread_room

LIMITED = "import sys; from thread_limit import start_no_more_than; start_no_more_than({})\n"
TOLD = "more threads may be started here: libraries work on one thread each; raise the limit"


@pytest.fixture
def model(make_checkpoint: Callable[..., Path]) -> Iterator[Path]:
    with folder_for_all() as folder:
        yield Path(shutil.copytree(make_checkpoint(codec="fp8"), folder / "model"))


def run_limited(num_threads: int, *words: object) -> subprocess.CompletedProcess[str]:
    """Runs `gramary WORDS` in a forked process that may start so many threads."""
    return run_child(LIMITED.format(num_threads) + WHOLE, *words)


@pytest.mark.parametrize(
    "num_threads", [0, *(pytest.param(n, marks=pytest.mark.needs("superuser")) for n in (1, 2, 5))]
)
def test_kind_19_a_pack_is_built_and_checked_with_few_threads(
    model: Path, num_threads: int
) -> None:
    with folder_for_all() as folder:
        folder.chmod(0o777)
        ours, theirs = folder / "ours.pack", folder / "theirs.pack"
        assert run_command("pack", model, ours) == 0
        for words in (("pack", model, theirs), ("verify", ours, "--against", model)):
            done = run_limited(num_threads, *words)
            assert done.returncode == 0, done.stderr
            assert f"only {num_threads} {TOLD}" in done.stderr
            assert done.stderr.count("\n") == 1
        assert theirs.read_bytes() == ours.read_bytes()


@pytest.mark.parametrize(("command", "words"), [
    ("inspect", ["{model}"]),
    ("plan", ["{model}", "--placement", "host=1KiB,disk"]),
    ("doctor", ["--model", "{model}"]),
    ("generate", ["--model", "{model}", "--prompt", "Once", "--max-new-tokens", "2",
                  "--placement", "disk", "--compare", "resident"]),
])  # fmt: skip
def test_kind_19_commands_do_without_threads(model: Path, command: str, words: list[str]) -> None:
    done = run_limited(0, command, *(word.format(model=model) for word in words))
    assert done.returncode == 0, done.stderr
    assert f"only 0 {TOLD}" in done.stderr
    if command == "doctor":
        assert "only 0 more can be started" in done.stdout


def test_kind_19_what_needs_a_thread_says_so(model: Path) -> None:
    prompt = ("--prompt", "Once upon a time", "--prefill-chunk-size", "4")
    words = ("--model", model, *prompt, "--max-new-tokens", "1", "--placement", "disk")
    done = run_limited(0, "generate", *words)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gramary: the row service cannot start its threads: ")
    assert "raise the limit on processes (ulimit -u" in last


def test_kind_19_libraries_are_imported_without_threads(model: Path, tmp_path: Path) -> None:
    """OpenBLAS interrupts the process, OpenMP ends it: in an interpreter that imports them."""
    script = f"sys.path.insert(0, {str(Path(__file__).parents[1] / 'support')!r})\n"
    script = "import sys\n" + script + LIMITED.format(0) + WHOLE
    done = subprocess.run(
        [sys.executable, "-c", script, "pack", str(model), str(tmp_path / "table.pack")],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "built" in done.stdout


def test_kind_19_nothing_is_said_where_threads_can_be_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(thread_room, "num_wanted", lambda: 2)
    monkeypatch.setattr(thread_room, "set_for_libraries", lambda _: pytest.fail("set a variable"))
    assert thread_room.count_startable(2) == 2
    thread_room.fit_libraries()
    assert not caplog.records
