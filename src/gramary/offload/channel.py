"""The words between engines and a worker process: a private Unix socket, a packet a message.

    worker → engine   hello: magic, version of the ring, process number
    engine → worker   "join" with descriptors: a description (JSON), the region, host tiers
    worker → engine   "refuse" and why, in place of serving
    engine → worker   "trace on", "trace off", "spans"
    worker → engine   "traced", once it is so
    worker → engine   "spans" with a descriptor: 40 bytes a span

That a region is served shows in the region itself. Either side leaves by closing its end. Only
processes of the same user are let in: the socket lies in a folder of mode 0700, and the kernel is
asked whose process the other end is.
"""

from __future__ import annotations

import os
import select
import socket
import struct

from gramary.errors import RowFetchError
from gramary.native import descriptors
from gramary.native.descriptors import Descriptor
from gramary.offload import ring

MAGIC = b"GRMYSERV"
JOIN, REFUSE, TRACE_ON, TRACE_OFF, SPANS = b"join", b"refuse", b"trace on", b"trace off", b"spans"
TRACED, STOP = b"traced", b"stop"

MAX_MESSAGE_BYTES = 4096
# The kernel's bound on descriptors in one message.
MAX_DESCRIPTORS = 253

_HELLO = struct.Struct("<8sIi")
_PEER = struct.Struct("3i")


def listen(path: str, backlog: int) -> socket.socket:
    """Returns a socket that engines of this user may connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def greet(connection: socket.socket) -> None:
    """Tells an engine who serves."""
    connection.send(_HELLO.pack(MAGIC, ring.VERSION, os.getpid()))


def connect(path: str, timeout_s: float) -> tuple[socket.socket, int]:
    """Returns a connection to the worker at a path, and its process number.

    Raises:
        RowFetchError: nobody answers there, or somebody else, or another version.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(timeout_s)
        connection.connect(path)
        hello = connection.recv(MAX_MESSAGE_BYTES)
        if not hello:
            raise RowFetchError(f"{path}: the row server there ended")
        if len(hello) != _HELLO.size or not hello.startswith(MAGIC):
            raise RowFetchError(f"{path}: expected a row server, got something else")
        _, version, pid = _HELLO.unpack(hello)
        if version != ring.VERSION:
            raise RowFetchError(
                f"this engine speaks version {ring.VERSION} of the ring, worker process {pid} "
                f"version {version}: install one gramary for both"
            )
    # A path may be no text that a file system takes.
    except (OSError, UnicodeError) as error:
        connection.close()
        raise RowFetchError(f"{path}: no row server answers there ({error})") from None
    except BaseException:
        connection.close()
        raise
    return connection, pid


def is_own_user(connection: socket.socket) -> bool:
    """Returns whether the process at the other end is of this process's user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(raw)
    return bool(uid == os.getuid())


def receive(connection: socket.socket, *, waits: bool) -> tuple[bytes, list[int]] | None:
    """Returns the next message and its descriptors; empty where the other end is gone.

    Args:
        connection: a connection.
        waits: whether to wait for a message, as long as the connection's time-out; None is
            returned where there is none.
    """
    # A socket with a time-out would wait for it first, whatever its flags say.
    if not waits and not is_readable(connection):
        return None
    try:
        message, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
    except (BlockingIOError, TimeoutError):
        return None
    except ConnectionError:
        return b"", []
    return message, list(descriptors)


def is_readable(connection: socket.socket) -> bool:
    """Returns whether a message, or the other end's leaving, is there."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def memory_file(name: str, content: bytes) -> Descriptor:
    """Returns a descriptor of an anonymous file with this content."""
    descriptor = descriptors.memory_file(name)
    with os.fdopen(descriptor.fileno(), "wb", closefd=False) as file:
        file.write(content)
    return descriptor


def read_memory_file(descriptor: int) -> bytes:
    """Returns the content of an anonymous file; the descriptor stays open."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read()


__all__ = [
    "JOIN",
    "REFUSE",
    "SPANS",
    "STOP",
    "TRACED",
    "TRACE_OFF",
    "TRACE_ON",
    "connect",
    "greet",
    "is_own_user",
    "listen",
    "memory_file",
    "read_memory_file",
    "receive",
]
