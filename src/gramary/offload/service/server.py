"""One worker process for the connectors of several ranks of a machine.

    with RowServer(num_ranks=2) as server:          # in the launcher, or in one rank
        ...                                         # hand server.address to every rank

    Connector(table, max_tokens=8192, worker="process", server=address)      # in each rank

A rank sends descriptors of its region and of its host rows over a private socket: the worker maps
the rank's own pages, and there is no second copy of a row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref

from gramary.arguments import require_integer
from gramary.errors import no_threads
from gramary.lifetime import Closing
from gramary.offload.worker import channel
from gramary.process.bound import ProcessBound
from gramary.process.descriptor_limit import naming_shortage
from gramary.settings import Settings, chosen_settings, inherited_environment

STOP_TIMEOUT_S = 5.0

# As `Settings.local_ranks` has it.
MAX_RANKS = 4096

# Of a Unix socket, its end included.
MAX_PATH_BYTES = 107

# Variables that the worker keeps: it needs no settings from them.
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")


class RowServer(Closing, ProcessBound):
    """A worker process, started here, that serves the connectors that come to its address.

    It ends by `close`, or when this process and every engine are gone. An engine that dies hurts no
    other; connectors find a worker that dies within a second.

    Args:
        num_ranks: connectors to serve together; serving begins when the last has come.
        settings: None takes them from the environment; `poll` and `num_threads` are used.

    Attributes:
        address: path of its socket, for `Connector(server=...)` in any process of this user.
        process: the worker.

    Raises:
        ArgumentError: `num_ranks` is out of its range, or the settings are none.
        DescriptorLimitError: fewer file descriptors may be open than it needs.
    """

    remedy = "it is this process's; pass its address on, for Connector(server=address)"

    def __init__(self, num_ranks: int, *, settings: Settings | None = None) -> None:
        num_ranks = require_integer("num_ranks", num_ranks, 1, MAX_RANKS)
        settings = chosen_settings(settings)
        # Of mode 0700; the worker removes it when it ends.
        with naming_shortage("start a row server"):
            folder = make_folder()
        self.address = os.path.join(folder, "rows")
        values = {
            "num_ranks": num_ranks,
            "folder": folder,
            "settings": dataclasses.asdict(settings),
        }
        with naming_shortage("start a row server"), contextlib.ExitStack() as opened:
            opened.callback(remove_folder, folder)
            listener = opened.enter_context(channel.listen(self.address, num_ranks + 8))
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(ours)
            opened.enter_context(theirs)
            config = channel.memory_file("gramary-worker", json.dumps(values).encode())
            opened.enter_context(config)
            self.process = start_worker(config.fileno(), listener.fileno(), theirs.fileno())
            self._owner = ours
            # The process has them now, and the folder is its own.
            listener.close()
            theirs.close()
            opened.pop_all()
            config.close()
        self._said = ""
        self._end = functools.partial(end_worker, self.process, self._owner, folder, os.getpid())
        self._finalizer = weakref.finalize(self, self._end)

    def why_dead(self) -> str | None:
        """Returns how the worker ended, with the end of what it said; None while it lives."""
        code = self.process.poll()
        if code is None:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        said = self._last_words()
        return f"worker process {self.process.pid} {how}" + (f": {said[-500:]}" if said else "")

    def close(self) -> None:
        """Stops the worker, whoever it serves; more calls do nothing but what is left to do."""
        self._end()
        self._finalizer.detach()

    def _last_words(self) -> str:
        errors = self.process.stderr
        if errors is not None and not errors.closed:
            self._said += errors.read().decode(errors="replace")
        return self._said.strip()


def make_folder() -> str:
    """Returns a new private folder whose path is short enough for a socket's."""
    # Where no descriptor is left, tempfile finds no folder usable, and says that.
    os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    long = len(os.fsencode(tempfile.gettempdir())) > MAX_PATH_BYTES - len("/gramary-12345678/rows")
    return tempfile.mkdtemp(prefix="gramary-", dir="/tmp" if long else None)


def remove_folder(folder: str) -> None:
    """Removes a folder that `make_folder` made; needs no file descriptor, as rmtree would."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, "rows"))
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def start_worker(*descriptors: int) -> subprocess.Popen[bytes]:
    """Returns the worker process, which inherits these descriptors and little else.

    Raises:
        UnsupportedError: the machine starts no more processes.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    kept = inherited_environment(_KEPT_VARIABLES)
    # It computes nothing; where it may start no threads, OpenBLAS would interrupt it at its import.
    kept |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        return subprocess.Popen(
            # -P: modules of the folder we stand in would hide the library's own, as they do not
            # here.
            [sys.executable, "-P", "-m", "gramary.offload.worker", *map(str, descriptors)],
            pass_fds=descriptors,
            env={**kept, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except BlockingIOError as error:
        raise no_threads("the worker process cannot be started", error) from error


def end_worker(
    process: subprocess.Popen[bytes], owner: socket.socket, folder: str, owner_pid: int
) -> None:
    """Asks a worker to end, and ends it where it does not; a forked child leaves it alone.

    May be called again, also where it was broken off.
    """
    if os.getpid() != owner_pid:
        return
    with contextlib.suppress(OSError):
        owner.send(channel.STOP)
    owner.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stderr is not None:
        process.stderr.close()
    # A worker that was killed left it behind.
    shutil.rmtree(folder, ignore_errors=True)


__all__ = ["RowServer"]
