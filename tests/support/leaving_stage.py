"""Programs that leave the interpreter in every way, with threads inside our calls.

`python -c "import leaving_stage; leaving_stage.main()"` forks a child for each, so that torch is
imported once, and prints how each ended as JSON: name → exit code, and what it said.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before anything of gramary: the last to run.
last_calls: list[Callable[[], object]] = []
atexit.register(lambda: [call() for call in last_calls])

import torch  # noqa: E402
from offload_stage import make_batch, make_table  # noqa: E402
from table_stage import encoded_table, small_spec, write_table_folder  # noqa: E402

from gramary import Connector, Settings, Table  # noqa: E402
from gramary.errors import ClosedError, RowFetchError  # noqa: E402

SETTINGS = Settings(request_timeout_s=20, num_threads=2)
BATCH = make_batch(1, lengths=(500, 30))
# What the main thread still owns when it leaves.
kept: dict[str, Any] = {}


def make_folder() -> str:
    """Writes a small table to a temporary folder and returns it."""
    spec = small_spec()
    encoded, codec = encoded_table(spec, "fp8")
    folder = tempfile.mkdtemp(dir=kept["folder"])
    return str(write_table_folder(Path(folder), spec, encoded, codec))


def keep_waiting(**words: Any) -> Callable[[], object]:
    """Requests and waits, one after the other."""
    table = make_table()
    connector = Connector(table, max_tokens=600, settings=SETTINGS, **words)
    out = torch.empty(BATCH.num_tokens, table.spec.embed_dim)
    return lambda: connector.wait(connector.request(BATCH), out=out)


def keep_waiting_in_vain() -> Callable[[], object]:
    """Waits for an answer that is held back."""
    connector = Connector(make_table(), max_tokens=600, settings=SETTINGS)
    connector.service.native.set_script(min_delay_us=200_000, max_delay_us=200_000)  # type: ignore[attr-defined]
    return lambda: connector.wait(connector.request(BATCH))


def keep_embedding() -> Callable[[], object]:
    table = make_table()
    tokens = torch.zeros(200_000, dtype=torch.int64)
    starts = torch.tensor([0, len(tokens)], dtype=torch.int32)
    out = torch.empty(len(tokens), table.spec.embed_dim, dtype=torch.bfloat16)
    return lambda: table.embed(tokens, starts, out=out)


def keep_looking_up(placement: str) -> Callable[[], object]:
    table = Table.open(make_folder(), placement=placement)
    ids = torch.arange(200_000) % table.spec.num_rows
    return lambda: table.lookup(ids)


def keep_opening() -> Callable[[], object]:
    folder = make_folder()
    return lambda: Table.open(folder, placement="host").close()


def keep_checking() -> Callable[[], object]:
    """Asks a worker process for its spans, and what became of it."""
    connector = Connector(make_table(), max_tokens=600, worker="process", settings=SETTINGS)
    return lambda: (connector.take_spans(), connector.check(), connector.stats())


CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    "wait": keep_waiting,
    "wait in vain": keep_waiting_in_vain,
    "wait for a process": lambda: keep_waiting(worker="process"),
    "take_spans": keep_checking,
    "embed": keep_embedding,
    "lookup in memory": lambda: keep_looking_up("host"),
    "lookup on disk": lambda: keep_looking_up("disk"),
    "open": keep_opening,
}


def enter(call: Callable[[], object]) -> None:
    """Starts a daemon thread that makes a call over and over; returns once it was made."""
    was_made = threading.Event()

    def run() -> None:
        # It ends in words of ours, or stands where it is.
        with contextlib.suppress(ClosedError, RowFetchError):
            while True:
                call()
                was_made.set()

    threading.Thread(target=run, daemon=True).start()
    assert was_made.wait(30)


def leave_by_exit() -> None:
    sys.exit(5)


def leave_by_error() -> None:
    raise RuntimeError("the program's own mistake")


def leave_by_signal() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def leave_by_handled_signal() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


def leave_at_once() -> None:
    os._exit(5)


def leave_with_last_calls() -> None:
    """Calls our objects from a function of `atexit` that runs behind all of ours."""
    table = make_table()
    connector = Connector(table, max_tokens=600, settings=SETTINGS)
    connector.request(BATCH)
    rows = table.lookup(torch.arange(10))

    def call() -> None:
        assert torch.equal(table.lookup(torch.arange(10)), rows)
        for refused in (lambda: connector.request(BATCH), connector.check):
            try:
                refused()
                os._exit(9)
            except ClosedError:
                pass
        connector.close()
        table.close()

    last_calls.append(call)
    sys.exit(5)


def leave_behind_a_child() -> None:
    """Forks while threads are inside; the child uses, closes and leaves, and so do we."""
    table, connector = kept["table"], kept["connector"]
    child = os.fork()
    if child == 0:
        try:
            connector.request(BATCH)
            os._exit(9)
        except ClosedError:
            table.lookup(torch.arange(10))
            table.close()
            sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(5 if code == 0 else 9)


WAYS: dict[str, tuple[Callable[[], None], int]] = {
    "sys.exit": (leave_by_exit, 5),
    "the end of the program": (lambda: None, 0),
    "an error": (leave_by_error, 1),
    "SIGTERM": (leave_by_signal, -signal.SIGTERM),
    "SIGTERM, handled": (leave_by_handled_signal, 5),
    "os._exit": (leave_at_once, 5),
    "atexit": (leave_with_last_calls, 5),
    "fork": (leave_behind_a_child, 5),
}


def leave_with_all_inside(way: str) -> None:
    """Has a thread inside each call, the forking one's objects among them, and leaves."""
    for name in ("wait", "embed", "lookup on disk", "open"):
        enter(CALLS[name]())
    table = kept["table"] = make_table()
    connector = kept["connector"] = Connector(table, max_tokens=600, settings=SETTINGS)
    enter(lambda: connector.wait(connector.request(BATCH)))
    enter(lambda: table.lookup(torch.zeros(100_000, dtype=torch.int64)))
    WAYS[way][0]()


def leave_from_inside(name: str) -> None:
    """Leaves by sys.exit with a thread inside one call."""
    enter(CALLS[name]())
    time.sleep(0.02)
    sys.exit(5)


def run_forked(function: Callable[[], None]) -> tuple[int, str]:
    """Runs a function in a forked child that then leaves as any interpreter does.

    Returns:
        Its exit code, below 0 the signal that ended it, and what it wrote to stderr. In the child
        it does not return.
    """
    folder = tempfile.mkdtemp()
    said = os.memfd_create("said")
    child = os.fork()
    if child == 0:
        os.dup2(said, 2)
        kept["folder"] = folder
        raise Forked(function)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    shutil.rmtree(folder)
    words = os.pread(said, 1 << 20, 0).decode()
    os.close(said)
    return os.waitstatus_to_exitcode(ended[1]), words


class Forked(BaseException):
    """Unwinds a forked child to its main program, with what to do there."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function


def main(stories: dict[str, Callable[[], None]]) -> None:
    """Runs each story in a child of its own and prints how they ended."""
    ends = {}
    try:
        for name, story in stories.items():
            ends[name] = run_forked(story)
    except Forked as forked:
        function = forked.function
    else:
        print(json.dumps(ends))
        return
    function()
