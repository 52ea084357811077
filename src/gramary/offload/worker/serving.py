"""The worker process: `python -m gramary.offload.worker CONFIG LISTENER OWNER`.

Started by `gramary.offload.service.server` alone; the arguments are inherited descriptors. It takes
in the connectors that come to its socket, serves their regions with threads of the core, and makes
no CUDA call. It ends when its owner says so, and when owner and engines are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import time
from typing import Any

from gramary.native.instructions import cap_instructions
from gramary.native.offload import RowService
from gramary.offload.service.base import RAW_SPAN, num_service_threads
from gramary.offload.worker import channel
from gramary.offload.worker.tenancy import Tenancy
from gramary.process.descriptor_limit import naming_shortage, shortage_in
from gramary.settings import Settings

# Time between two looks at those who are leaving.
LOOK_EVERY_S = 0.02


class Worker:
    """Connections, and what is served for each.

    The first `num_ranks` connectors are served by one service, which starts with the last of them:
    its threads are shared, so that ranks do not take each other's CPUs. One that comes later has a
    service to itself.

    Args:
        listener: where engines come.
        owner: the end of who may say stop.
        num_ranks: connectors to wait for.
        settings: `poll`, `num_threads` and `instructions` are used.
    """

    def __init__(
        self, listener: socket.socket, owner: socket.socket, num_ranks: int, settings: Settings
    ) -> None:
        self._listener, self._owner = listener, owner
        self._num_ranks = num_ranks
        self._settings = settings
        cap_instructions(settings.instructions)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(owner, selectors.EVENT_READ)
        self._seats: dict[socket.socket, Tenancy | None] = {}
        self._leaving: list[Tenancy] = []
        self._waiting: list[Tenancy] = []
        self._services: dict[RowService, list[Tenancy]] = {}
        self._unsent_spans = bytearray()
        self._has_begun = False
        self._has_owner = True
        self._is_told_to_stop = False

    def run(self) -> None:
        """Serves until it is told to stop, or everybody is gone."""
        while not self._is_told_to_stop and (self._has_owner or self._seats):
            for key, _ in self._selector.select(LOOK_EVERY_S if self._leaving else None):
                assert isinstance(key.fileobj, socket.socket)
                self._hear(key.fileobj)
            self._see_out()
        for service in self._services:
            service.stop()
        for tenancy in (*self._seats.values(), *self._leaving):
            if tenancy is not None:
                tenancy.close()

    def _hear(self, connection: socket.socket) -> None:
        if connection is self._listener:
            self._let_in()
        elif connection is self._owner:
            message = channel.receive(connection, 0)
            self._is_told_to_stop = message is not None and message[0] == channel.STOP
            if message is not None and not message[0]:
                self._has_owner = False
                self._selector.unregister(connection)
        elif (heard := channel.receive(connection, 0)) is not None:
            self._answer(connection, *heard)

    def _let_in(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # Out of descriptors, for one: who is served is served on, who comes is let in later.
            time.sleep(LOOK_EVERY_S)
            return
        # Nobody who does not listen keeps the others waiting.
        connection.setblocking(False)
        if not channel.is_own_user(connection):
            connection.close()
            return
        self._seats[connection] = None
        self._selector.register(connection, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            channel.greet(connection)

    def _answer(self, connection: socket.socket, message: bytes, descriptors: list[int]) -> None:
        try:
            if not message:
                self._leave(connection)
            elif message == channel.JOIN:
                if self._seats[connection] is None:
                    self._take_in(connection, descriptors)
            elif (asked := channel.read_numbered(message)) is not None:
                self._answer_question(connection, *asked)
        except OSError:
            # It is gone, and the next message says so; or it reads no answers.
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _answer_question(self, connection: socket.socket, word: bytes, number: int) -> None:
        """Answers under the question's own number, so that no answer passes for another's."""
        if word in (channel.TRACE_ON, channel.TRACE_OFF):
            for service in self._services:
                service.trace(word == channel.TRACE_ON)
            connection.send(channel.numbered(channel.TRACED, number))
        elif word == channel.SPANS:
            self._send_spans(connection, number)

    def _take_in(self, connection: socket.socket, descriptors: list[int]) -> None:
        """Serves a connector, or tells it why not: whatever one sends, others are served on."""
        try:
            with naming_shortage("serve one more connector"):
                tenancy = Tenancy(descriptors)
        except Exception as error:
            refuse(connection, error)
            return
        self._waiting.append(tenancy)
        try:
            if self._has_begun or len(self._waiting) >= self._num_ranks:
                self._serve_waiting()
        except Exception as error:
            self._waiting.remove(tenancy)
            tenancy.close()
            refuse(connection, error)
            return
        self._seats[connection] = tenancy

    def _serve_waiting(self) -> None:
        """Starts one service for all who wait; where that fails, they wait on."""
        service = RowService(
            [waiting.tenant for waiting in self._waiting],
            poll=self._settings.poll,
            num_threads=num_service_threads(self._settings),
        )
        service.start()
        for index, tenancy in enumerate(self._waiting):
            tenancy.seat(service, index)
        self._has_begun = True
        self._services[service] = list(self._waiting)
        self._waiting.clear()

    def _leave(self, connection: socket.socket) -> None:
        """Lets go of a connection that was closed, by its engine or by its engine's end."""
        self._selector.unregister(connection)
        connection.close()
        tenancy = self._seats.pop(connection)
        if tenancy is None:
            return
        if tenancy in self._waiting:
            self._waiting.remove(tenancy)
        tenancy.ask_to_leave()
        self._leaving.append(tenancy)

    def _see_out(self) -> None:
        """Closes what nobody reads any more, and services without anybody to serve."""
        for tenancy in [tenancy for tenancy in self._leaving if tenancy.has_left()]:
            tenancy.close()
            self._leaving.remove(tenancy)
            for service, served in list(self._services.items()):
                if tenancy in served:
                    served.remove(tenancy)
                if not served:
                    service.stop()
                    del self._services[service]

    def _send_spans(self, connection: socket.socket, number: int) -> None:
        if not self._unsent_spans:
            for service in self._services:
                for span in service.take_raw_spans():
                    self._unsent_spans += RAW_SPAN.pack(*span)
        answer = channel.numbered(channel.SPANS, number)
        try:
            descriptor = channel.memory_file("gramary-spans", self._unsent_spans)
        except OSError as error:
            if shortage_in(error):
                # The engine says what is missing; the spans wait for the next question.
                connection.send(answer)
            raise
        with descriptor:
            socket.send_fds(connection, [answer], [descriptor.fileno()])
        # What could not be sent goes with the next answer.
        self._unsent_spans.clear()


def refuse(connection: socket.socket, error: Exception) -> None:
    """Tells an engine why it is not served."""
    why = f"{type(error).__name__}: {error}".encode(errors="replace")
    connection.send(channel.REFUSE + why[: channel.MAX_MESSAGE_BYTES // 2])


def main(arguments: list[str]) -> int:
    """Runs a worker on inherited descriptors."""
    # The engines' interrupt is theirs to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config, listener, owner = map(int, arguments)
    values: dict[str, Any] = json.loads(channel.read_memory_file(config))
    worker = Worker(
        socket.socket(fileno=listener),
        socket.socket(fileno=owner),
        values["num_ranks"],
        Settings(**values["settings"]),
    )
    try:
        worker.run()
    finally:
        shutil.rmtree(values["folder"], ignore_errors=True)
    return 0
