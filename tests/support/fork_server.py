"""The server of `children.py`: imports what tests' scripts import, then forks one child a script.

    python fork_server.py PACKAGE...        with its socket as standard input

A request is a JSON object (script, arguments, environment, path, folder) in one message, with
descriptors: the child's standard streams; a pipe that takes the child's process number at once and
its wait status when it has ended; and any that the child keeps, whose numbers are its last
arguments. The server starts no thread, so that a fork is a whole one.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import struct
import sys
import threading
import types
from typing import Any

MAX_REQUEST_BYTES = 1 << 18
MAX_DESCRIPTORS = 16
NUMBER = struct.Struct("q")


class Server:
    """Forks a child for each request, and tells each child's end to who asked for it."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        # The pipe that waits for each child's end, by process number.
        self._reports: dict[int, int] = {}
        self._wakes, self._woken = socket.socketpair()
        for end in (self._wakes, self._woken):
            end.setblocking(False)
        signal.set_wakeup_fd(self._woken.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> dict[str, Any] | None:
        """Returns in each child with its request, and in the server, with None, at the end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(self._wakes, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._wakes in ready:
                    with contextlib.suppress(BlockingIOError):
                        self._wakes.recv(4096)
                    self._report_ends()
                if self._requests in ready:
                    text, descriptors, *_ = socket.recv_fds(
                        self._requests, MAX_REQUEST_BYTES, MAX_DESCRIPTORS
                    )
                    if not text:
                        return None
                    if self._fork(*descriptors) == 0:
                        request = json.loads(text)
                        request["arguments"] += map(str, descriptors[4:])
                        return request

    def _fork(self, stdin: int, stdout: int, stderr: int, report: int, *kept: int) -> int:
        standard = (stdin, stdout, stderr)
        child = os.fork()
        if child == 0:
            self._become_child(standard)
            os.close(report)
            return 0
        for descriptor in (*standard, *kept):
            os.close(descriptor)
        self._reports[child] = report
        os.write(report, NUMBER.pack(child))
        return child

    def _become_child(self, standard: tuple[int, ...]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._requests, self._wakes, self._woken):
            end.close()
        for report in self._reports.values():
            os.close(report)
        for number, stream in enumerate(standard):
            os.dup2(stream, number)
            os.close(stream)

    def _report_ends(self) -> None:
        while self._reports:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            report = self._reports.pop(child)
            # Who asked may have ended meanwhile.
            with contextlib.suppress(BrokenPipeError):
                os.write(report, NUMBER.pack(status))
            os.close(report)


def run_script(request: dict[str, Any]) -> None:
    """Runs a script as `python -c` does."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv[:] = ["-c", *request["arguments"]]
    sys.path[:] = request["path"]
    # Not the same numbers in every child.
    random.seed()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    code = 0
    try:
        exec(compile(request["script"], "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        if request["tears_down"] or not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    if not request["tears_down"]:
        end_at_once(code)


def end_at_once(code: int) -> None:
    """Ends this process without taking every module apart, which takes torch most of a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Serves until who started it closes the socket."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would not be in the children"
    # What is there now stays in pages that all children share.
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    requests.send(b"ready")
    request = Server(requests).serve()
    if request is not None:
        run_script(request)


if __name__ == "__main__":
    main()
