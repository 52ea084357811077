"""The row service in a process of its own, as the engine that it serves sees it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Sequence

from gramary.errors import RowFetchError
from gramary.offload.memory.region import Region
from gramary.offload.service.base import Service, spans_from
from gramary.offload.service.server import RowServer
from gramary.offload.worker import channel
from gramary.offload.worker.description import describe
from gramary.process.descriptor_limit import REMEDY, soft_limit
from gramary.settings import Settings
from gramary.table import Table
from gramary.tracing import Span

logger = logging.getLogger("gramary")

START_TIMEOUT_S = 60.0
# Each rank loads its table before it comes, some from slower storage than others.
RANKS_TIMEOUT_S = 600.0
ANSWER_TIMEOUT_S = 5.0
LAST_WORDS_S = 1.0


class ProcessService(Service):
    """A worker process that serves a region: its own, or a row server's that serves others too.

    The worker gets descriptors of the region and of the host tiers' memory, so that there is no
    second copy of a row, and opens the files of disk tiers by itself.

    Args:
        region: the shared memory to serve.
        tables: the connector's tables, open in this process; their host rows are mapped, not
            copied.
        settings: `poll`, `num_threads` and the disk reader's settings are passed on.
        address: of a row server; None starts a worker for this region alone.

    Attributes:
        pid: the worker's process number.
    """

    def __init__(
        self,
        region: Region,
        tables: Sequence[Table],
        settings: Settings,
        address: str | None = None,
    ) -> None:
        self._region = region
        self._turn = threading.Lock()
        self._is_stopped = self._has_left = False
        self._num_asked = 0
        self._spans: list[Span] = []
        self._why_gone: str | None = None
        self._server: RowServer | None = None
        self._connection: socket.socket | None = None
        self._tables, self._settings, self._address = tuple(tables), settings, address
        self.pid = 0

    def start(self) -> None:
        """Starts a worker, unless there is one to go to, and has it serve the region.

        Raises:
            RowFetchError: the worker did not come up, or cannot serve this; the message says why.
        """
        address = self._address
        try:
            if address is None:
                self._server = RowServer(1, settings=self._settings)
                address = self._server.address
            self._connection, self.pid = channel.connect(address, START_TIMEOUT_S)
            try:
                self._join(self._connection)
                self._await_start()
            except BaseException:
                self._connection.close()
                raise
        except OSError as error:
            self._close_server(error)
            raise RowFetchError(f"the row service did not start: {error}") from error
        except BaseException as error:
            self._close_server(error)
            raise

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The worker, where it was started for this region alone."""
        assert self._server is not None
        return self._server.process

    def why_dead(self) -> str | None:
        """Returns how the worker ended, or why it does not serve; None while it does."""
        if self._is_stopped:
            return "the row service was stopped"
        with self._turn:
            self._hear(0)
        if self._why_gone is None or self._server is None:
            return self._why_gone
        # Who started it can tell how it ended, once it has.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.process.wait(ANSWER_TIMEOUT_S)
        return self._server.why_dead() or self._why_gone

    def trace(self, on: bool) -> None:
        """Starts or ends the keeping of spans, of everybody that the worker serves."""
        with self._turn:
            self._ask(channel.TRACE_ON if on else channel.TRACE_OFF)

    def take_spans(self) -> list[Span]:
        """Returns the spans kept since somebody's last call; none of a worker that is gone.

        What a worker that stands still sends later comes with the next call.
        """
        with self._turn:
            self._ask(channel.SPANS)
            spans, self._spans = self._spans, []
            return spans

    def stop(self) -> None:
        """Leaves the worker, which lets go of the region; ends it where it has nobody else."""
        if self._has_left:
            return
        self._is_stopped = True
        # The worker has pages of its own: nothing has to be waited for.
        self._region.ask_to_stop()
        if self._connection is not None:
            with contextlib.suppress(OSError):
                # Another thread may be waiting for an answer.
                self._connection.shutdown(socket.SHUT_RDWR)
            with self._turn:
                self._connection.close()
        self._close_server(None)
        self._has_left = True

    @property
    def _joined(self) -> socket.socket:
        assert self._connection is not None
        return self._connection

    def _join(self, connection: socket.socket) -> None:
        description, descriptors = describe(self._region, self._tables, self._settings)
        with channel.memory_file("gramary-worker", json.dumps(description).encode()) as config:
            socket.send_fds(connection, [channel.JOIN], [config.fileno(), *descriptors])
        connection.settimeout(ANSWER_TIMEOUT_S)

    def _await_start(self) -> None:
        timeout_s = RANKS_TIMEOUT_S if self._server is None else START_TIMEOUT_S
        deadline = time.monotonic() + timeout_s
        while not self._region.is_served():
            why = self.why_dead()
            if why is None and time.monotonic() < deadline:
                time.sleep(0.002)
                continue
            why = why or (
                f"worker process {self.pid} still waits for other ranks after {timeout_s:g} s: "
                "num_ranks connectors have to come"
            )
            raise RowFetchError(f"the row service did not start: {why}")

    def _ask(self, word: bytes) -> None:
        """Asks the worker and waits for the answer to this question; earlier ones come late."""
        if self._is_stopped:
            return
        self._num_asked += 1
        number = self._num_asked
        with contextlib.suppress(OSError):
            self._joined.send(channel.numbered(word, number))
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while self._why_gone is None and not self._is_stopped:
            left = deadline - time.monotonic()
            if left <= 0:
                logger.warning(
                    "worker process %d did not answer %r within %g s",
                    self.pid, word.decode(), ANSWER_TIMEOUT_S,
                )  # fmt: skip
                return
            if self._hear(left) == number:
                return

    def _hear(self, timeout_s: float) -> int:
        """Takes the worker's next message, if one comes in time.

        Spans are kept, whichever question they answer.

        Returns:
            The number of the question that it answers, 0 for none.
        """
        if self._why_gone is not None or self._is_stopped:
            return 0
        heard = channel.receive(self._joined, timeout_s)
        if heard is None:
            return 0
        message, descriptors = heard
        try:
            if message.startswith(channel.REFUSE):
                self._why_gone = message.removeprefix(channel.REFUSE).decode(errors="replace")
            elif not message:
                self._why_gone = f"worker process {self.pid} ended"
            word, number = channel.read_numbered(message) or (b"", 0)
            if word == channel.SPANS and descriptors:
                self._spans += spans_from(channel.read_memory_file(descriptors[0]))
            elif word == channel.SPANS:
                logger.warning(
                    "the spans of worker process %d did not come: too few file descriptors here "
                    "(limit %s) or there; %s", self.pid, soft_limit(), REMEDY,
                )  # fmt: skip
            return number
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _close_server(self, error: BaseException | None) -> None:
        if self._server is None:
            return
        if error is not None:
            # A worker that cannot start hangs up first and ends a moment later.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.process.wait(LAST_WORDS_S)
        why = self._server.why_dead()
        self._server.close()
        is_told = error is None or (why is not None and why in str(error))
        if why and not is_told and isinstance(error, (RowFetchError, OSError)):
            raise RowFetchError(f"the row service did not start: {why}") from error


__all__ = ["ProcessService"]
