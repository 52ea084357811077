"""Kind 25: a signal has its exit code from the first moment of a command to its last."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import WHOLE, run_process

# Whoever started the tests may have its jobs ignore signals, as a shell without job control does.
HEARD = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
"""
# Sends itself a signal when a module is first imported.
AT_IMPORT = """
import os, signal, sys

class Bell:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Bell())
"""
# Does something once the command has begun its work.
AT_WORK = """
import atexit, os, threading, time
from gramary.files import source
find_sources = source.find_sources
def find(path):
    {action}
    return find_sources(path)
source.find_sources = find
"""
# While threads are waited for, which comes before anything that was registered.
AT_THREADS = """
def wait():
    threading.main_thread().join()
    os.kill(os.getpid(), {number})
    time.sleep(0.2)
"""
KILL = "os.kill(os.getpid(), {number})"
LATE = {
    "at work": AT_WORK.replace("{action}", KILL),
    "at exit": AT_WORK.replace("{action}", "atexit.register(os.kill, os.getpid(), {number})"),
    "at the end of threads": AT_WORK.replace("{action}", "threading.Thread(target=wait).start()")
    + AT_THREADS,
}
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def model(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(codec="fp8")


@pytest.mark.parametrize(
    "module", ["typer", "gramary.cli.plan", "numpy", "torch.nn", "gramary.storage.allocation"]
)
def test_kind_25_an_interrupt_during_an_import_is_130(model: Path, module: str) -> None:
    """numpy, imported inside torch, swallows the exception; other modules make another of it."""
    script = HEARD + AT_IMPORT.format(module=module, number=int(signal.SIGINT)) + WHOLE
    done = subprocess.run(
        [sys.executable, "-c", script, "plan", str(model)],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("moment", LATE)
def test_kind_25_a_signal_has_its_code_to_the_last_moment(
    model: Path, moment: str, number: signal.Signals
) -> None:
    done = run_process(HEARD + LATE[moment].format(number=int(number)), ["plan", model])
    assert (done.returncode, done.stderr) == (128 + number, "")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_kind_25_a_signal_that_is_ignored_stays_ignored(
    model: Path, number: signal.Signals
) -> None:
    """As nohup has it."""
    ignored = f"import signal; signal.signal({int(number)}, signal.SIG_IGN)\n"
    done = run_process(ignored + LATE["at work"].format(number=int(number)), ["plan", model])
    assert (done.returncode, done.stderr) == (0, "")


def test_kind_25_files_are_put_in_order_and_a_second_signal_waits_for_nothing(
    model: Path, tmp_path: Path
) -> None:
    """The first one is an exception where the command works; what it runs then has an end."""
    pack = tmp_path / "table.pack"
    stuck = f"""
import os, signal, time
from gramary.files.pack.partial_file import PartialFile
def publish(self, *_):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
    finally:
        open({str(tmp_path / "put in order")!r}, "w").close()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(20)
PartialFile.publish = publish
"""
    begin = time.monotonic()
    assert run_process(HEARD + stuck, ["pack", model, pack]).returncode == 143
    assert time.monotonic() - begin < 15
    assert (tmp_path / "put in order").exists()
    assert not pack.exists()
    # Goes on where it stopped.
    assert run_process("", ["pack", model, pack]).stdout.count("resumed") == 1


def test_kind_25_the_page_names_every_code() -> None:
    page = Path(__file__).parents[2].joinpath("docs/operations.md").read_text(encoding="utf-8")
    codes = page.partition("## Exit codes")[2].partition("\n## ")[0]
    for code in (0, 1, 2, 130, 129, 143, 141):
        assert f"| {code} |" in codes
