"""Child processes of tests: each leads a session of its own, and none of it outlives the test."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def start_session(
    words: Sequence[str | Path], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program that writes to `log`; at the end, kills what is left of its session."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for left in {process.pid, *list_session(process.pid)}:
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        process.wait()


def list_session(leader: int) -> list[int]:
    """Returns the ids of the living processes in the session that `leader` began."""
    members = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):
            # The name may hold spaces and brackets; what follows it does not.
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                members.append(int(folder.name))
    return members


def wait_for_session(leader: int, seconds: float = 10) -> list[int]:
    """Waits until the session has no process, and returns those that are left after all."""
    until = time.monotonic() + seconds
    while (left := list_session(leader)) and time.monotonic() < until:
        time.sleep(0.1)
    return left
