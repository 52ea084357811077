"""What a file really is that is not what its name says, from its first bytes.

Looked at only once a file was found not to be what it should be, so a wrong guess costs nothing but
a wrong word. "Download it again" is no help where the same comes again.
"""

from __future__ import annotations

import os
import re

# Enough of a file to know it by.
HEAD_BYTES = 1024

_AGAIN = "download the file again"
_LOGGED_IN = (
    "look at it: the address may be wrong, or need a log-in or an accepted licence; then download "
    "the file again"
)
_CONVERT = "take the checkpoint in safetensors, or convert it"

# What files of a kind begin with, what they are, and what to do.
# Sources: https://git-lfs.com/spec, git-annex's "pointer files", https://huggingface.co/docs/xet,
# and the magic numbers of file(1).
_BEGINNINGS: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer", "lfs"),
    (b"version https://hawser", "a Git LFS pointer", "lfs"),
    (b"# xet version", "a Xet pointer", "download it with a client that knows Xet (hf download)"),
    (b"/annex/objects/", "a git-annex pointer", "run `git annex get` in its folder"),
    (b"GRAMPACK", "a pack of gramary", "give its own path where a pack is meant"),
    (b"GRAMPART", "a pack that is being built", "run `gramary pack` again"),
    (b"PK\x03\x04", "a zip archive, as PyTorch writes its files", _CONVERT),
    (b"GGUF", "a GGUF file", _CONVERT),
    (b"\x89HDF", "an HDF5 file", _CONVERT),
    (b"\x93NUMPY", "a NumPy file", _CONVERT),
    (b"\x1f\x8b", "a gzip archive", "unpack it"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive", "unpack it"),
    (b"\xfd7zXZ", "an xz archive", "unpack it"),
    (b"<!doctype html", "an HTML page", _LOGGED_IN),
    (b"<html", "an HTML page", _LOGGED_IN),
    (b"<?xml", "an XML document", _LOGGED_IN),
    (b"<error", "an XML document", _LOGGED_IN),
)
_SERVER_MESSAGE = re.compile(rb'\{\s*"(?:error|message|detail|code|status)\w*"\s*:')
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_LFS_SIZE = re.compile(rb"\nsize ([0-9]{1,18})\n")


def recognise(head: bytes, num_bytes: int) -> str | None:
    """Returns what a file is and what to do, such as `a GGUF file; convert it`, or None.

    Args:
        head: its first `HEAD_BYTES`, or all of a shorter one.
        num_bytes: its size.
    """
    if num_bytes == 0:
        return f"an empty file, of which a download or a copy made no more; {_AGAIN}"
    # Without what editors put before a text.
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    for beginning, what, remedy in _BEGINNINGS:
        if text.lower().startswith(beginning.lower()):
            if remedy == "lfs":
                what, remedy = _describe_lfs(text)
            return f"{what} ({num_bytes} bytes); {remedy}"
    if _SERVER_MESSAGE.match(text):
        return f"an error message of a server ({num_bytes} bytes); {_LOGGED_IN}"
    if _PICKLE.match(head):
        return f"a pickle, as old PyTorch files are; {_CONVERT}"
    if not head.strip(b"\0"):
        return f"nothing but zeros at its start: room for a download that did not end; {_AGAIN}"
    return _describe_text(text)


def recognise_path(path: str | os.PathLike[str]) -> str | None:
    """Returns `recognise` of the file at a path, or what its name leads to; None where unknown."""
    if os.path.islink(path) and not os.path.exists(path):
        return (
            f"a link to {os.readlink(path)!r}, which is not there: a copy of a hub cache without "
            f"its blobs, or a download that did not end; download the model again"
        )
    try:
        # O_NONBLOCK: a named pipe is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return recognise(os.pread(descriptor, HEAD_BYTES, 0), os.fstat(descriptor).st_size)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _describe_lfs(text: bytes) -> tuple[str, str]:
    size = _LFS_SIZE.search(text)
    stands_for = f" to a file of {int(size[1])} bytes" if size else ""
    return (
        f"a Git LFS pointer{stands_for}",
        "the repository was cloned without git-lfs: install it and run `git lfs pull` in the "
        "model's folder, or take the model with `hf download`",
    )


def _describe_text(text: bytes) -> str | None:
    """Returns a short line of text as a server answers in place of a file, or None."""
    line = text[:80].partition(b"\n")[0].decode(errors="replace").strip()
    is_words = len(text) < HEAD_BYTES and line[:1].isalpha() and " " in line and line.isprintable()
    return f"a text that begins with {line!r}; {_LOGGED_IN}" if is_words else None
