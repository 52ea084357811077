"""Child processes for tests, without the seconds in which each would import torch and gramary.

`run_child` and `start_child` stand for `python -c SCRIPT`, `start_worker` for the worker process of
the row service; `offload/test_process.py` alone starts that one as users do. A server, one a test
process, has imported the packages, started no thread and opened nothing; it forks a child for each
script. A script that depends on variables which are read while torch or Triton is imported, or on
packages that were never imported, takes an interpreter of its own: `run_apart`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fork_server import NUMBER

PRELOADED = ("gramary", "gramary.offload.worker", "gramary.tiers.disk", "safetensors.torch")


WORKER = "import sys; from gramary.offload.worker.serving import main; sys.exit(main(sys.argv[1:]))"


class Child:
    """A process that runs a script; who started it closes it.

    Attributes:
        pid: its process number.
        returncode: its exit code, below 0 the signal that ended it; None while it runs.
    """

    def __init__(
        self, report: int, stdin: IO[str] | None = None, stdout: IO[str] | None = None
    ) -> None:
        self.returncode: int | None = None
        self._stdin, self._stdout = stdin, stdout
        self._report = report
        self._turn = threading.Lock()
        self.pid = self._hear()

    def tell(self, line: str) -> None:
        """Writes a line to what it reads."""
        assert self._stdin is not None
        self._stdin.write(f"{line}\n")
        self._stdin.flush()

    def hear(self) -> str:
        """Returns the next line that it prints; nothing once it has ended."""
        assert self._stdout is not None
        return self._stdout.readline()

    def poll(self) -> int | None:
        """Returns its exit code, or None while it runs."""
        return self._await_end(0)

    def wait(self, timeout: float | None = None) -> int:
        """Returns its exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, after so many seconds.
        """
        code = self._await_end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("python", timeout or 0)
        return code

    def kill(self) -> None:
        """Ends it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends it and closes its streams."""
        self.kill()
        self.wait()
        for stream in (self._stdin, self._stdout):
            if stream is not None:
                stream.close()

    def _await_end(self, timeout: float | None) -> int | None:
        with self._turn:
            if self.returncode is None and select.select([self._report], [], [], timeout)[0]:
                self.returncode = os.waitstatus_to_exitcode(self._hear())
                os.close(self._report)
            return self.returncode

    def _hear(self) -> int:
        told = os.read(self._report, NUMBER.size)
        assert told, "the server of child processes has ended"
        return int(NUMBER.unpack(told)[0])


class WorkerChild(Child):
    """A worker process, as `subprocess.Popen` describes one to the row server.

    Attributes:
        stderr: what it says in the end.
    """

    def __init__(self, report: int, stderr: IO[bytes]) -> None:
        super().__init__(report)
        self.stderr = stderr


def start_worker(*descriptors: int) -> WorkerChild:
    """Stands for `server.start_worker` of the row service, without the seconds of an import."""
    said, says = os.pipe()
    with open(os.devnull, "r+") as nothing:
        streams = (nothing.fileno(), nothing.fileno(), says)
        report = _ask_server(WORKER, (), None, streams, descriptors)
    os.close(says)
    return WorkerChild(report, open(said, "rb"))


def start_child(script: str, *arguments: object, env: Mapping[str, str] | None = None) -> Child:
    """Starts a script with pipes to its standard input and from its output.

    Args:
        script: the program's text; modules are found as in this process.
        *arguments: its words, as text.
        env: all its variables; None gives it those of this process.
    """
    reads, stdin = os.pipe()
    stdout, writes = os.pipe()
    report = _ask_server(script, arguments, env, (reads, writes, 2))
    os.close(reads)
    os.close(writes)
    return Child(report, open(stdin, "w"), open(stdout))


def run_child(
    script: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    tears_down: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a script; returns how it ended and what it said.

    Args:
        script: the program's text; modules are found as in this process.
        *arguments: its words, as text.
        env: all its variables; None gives it those of this process.
        timeout: seconds after which it is killed.
        tears_down: take the interpreter apart in the end, for a test that is about a process's end.

    Raises:
        subprocess.TimeoutExpired: it was killed.
    """
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+") as stdout,
        tempfile.TemporaryFile("w+") as stderr,
    ):
        streams = (nothing.fileno(), stdout.fileno(), stderr.fileno())
        child = Child(_ask_server(script, arguments, env, streams, tears_down=tears_down))
        try:
            child.wait(timeout)
        finally:
            child.close()
        said = []
        for stream in (stdout, stderr):
            stream.seek(0)
            said.append(stream.read())
    return subprocess.CompletedProcess(["-c", *map(str, arguments)], child.wait(), *said)


def run_apart(
    script: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Does what `run_child` does in an interpreter of its own, which takes seconds to start.

    For a script that counts its memory to the last page, since a forked process has other gaps in
    its heap; that takes an interpreter's end apart; or that says what is imported first.
    """
    variables = dict(os.environ if env is None else env)
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=variables | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _ask_server(
    script: str,
    arguments: tuple[object, ...],
    env: Mapping[str, str] | None,
    streams: tuple[int, int, int],
    kept: tuple[int, ...] = (),
    *,
    tears_down: bool = False,
) -> int:
    """Has a child forked; returns the end of the pipe that tells of it."""
    request: dict[str, Any] = {
        "script": script,
        "arguments": list(map(str, arguments)),
        "environment": dict(os.environ if env is None else env),
        "path": [str(Path(__file__).parent), *sys.path],
        "folder": os.getcwd(),
        "tears_down": tears_down,
    }
    report, told = os.pipe()
    try:
        socket.send_fds(_server(), [json.dumps(request).encode()], [*streams, told, *kept])
    finally:
        os.close(told)
    return report


@functools.cache
def _server() -> socket.socket:
    """Starts the server of this process, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = Path(__file__).with_name("fork_server.py")
    with theirs:
        process = subprocess.Popen(
            [sys.executable, str(program), *PRELOADED],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            # A pool of threads that a package makes while it is imported would stop the forking.
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
    assert ours.recv(16) == b"ready", "the server of child processes did not start"

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
