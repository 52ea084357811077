"""The words between engines and a worker process: a private Unix socket, a packet a message.

    worker → engine   hello: magic, version of the ring, process number
    engine → worker   "join" with descriptors: a description (JSON), the region, host tiers
    worker → engine   "refuse" and why, in place of serving
    engine → worker   a question with its number: "trace on", "trace off" or "spans"
    worker → engine   the answer with the question's number: "traced", once it is so
    worker → engine   likewise "spans" with a descriptor: 40 bytes a span

An answer that comes late has an older number, and is not taken for that of the question since.
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
from gramary.offload.memory import ring

MAGIC = b"GRMYSERV"
JOIN, REFUSE, TRACE_ON, TRACE_OFF, SPANS = b"join", b"refuse", b"trace on", b"trace off", b"spans"
TRACED, STOP = b"traced", b"stop"

MAX_MESSAGE_BYTES = 4096
# The kernel's bound on descriptors in one message.
MAX_DESCRIPTORS = 253

_NUMBERED = struct.Struct("<16sQ")
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


def numbered(word: bytes, number: int) -> bytes:
    """Returns a question, or the answer to it, as a message."""
    return _NUMBERED.pack(word, number)


def read_numbered(message: bytes) -> tuple[bytes, int] | None:
    """Returns a question's or an answer's word and number; None where the message is neither."""
    if len(message) != _NUMBERED.size:
        return None
    word, number = _NUMBERED.unpack(message)
    return word.rstrip(b"\0"), number


def receive(connection: socket.socket, timeout_s: float) -> tuple[bytes, list[int]] | None:
    """Returns the next message and its descriptors; empty where the other end is gone.

    Args:
        connection: a connection.
        timeout_s: how long to wait for a message; None is returned where there is none.
    """
    # A socket with a time-out would wait for that one, whatever is asked for here.
    if not is_readable(connection, timeout_s):
        return None
    try:
        message, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
    except (BlockingIOError, TimeoutError):
        return None
    except OSError:
        return b"", []
    return message, list(descriptors)


def is_readable(connection: socket.socket, timeout_s: float) -> bool:
    """Returns whether a message, or the other end's leaving, is there within a time."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def memory_file(name: str, content: bytes | bytearray) -> Descriptor:
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
    "numbered",
    "read_memory_file",
    "read_numbered",
    "receive",
]
