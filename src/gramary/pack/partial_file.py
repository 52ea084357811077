"""The file that a pack is built in: one writer, room reserved, published in one step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import Self

from gramary.errors import PackError
from gramary.lifetime import Closing

SUFFIX = ".partial"


class PartialFile(Closing):
    """`OUT.partial`, open and locked by this process; a context manager.

    Order of calls: enter → `reserve` → `write` at any offsets → `publish`, or leave without it: the
    file stays for the next build to take up. Writes bypass the page cache where the file system
    allows it, so that building a pack evicts nothing that serves.

    Args:
        out_path: the name that `publish` gives the file.

    Raises:
        PackError: another process is building it, or something that is no regular file is there.
    """

    def __init__(self, out_path: str) -> None:
        self.out_path = out_path
        self.path = out_path + SUFFIX
        self.descriptor = -1
        self._direct = -1

    def __enter__(self) -> Self:
        self.descriptor = self._open_locked()
        with contextlib.suppress(OSError):
            self._direct = os.open(self.path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        return self

    def close(self) -> None:
        """Closes the file and gives up its lock; more calls do nothing."""
        for descriptor in (self._direct, self.descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self._direct = -1

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return os.fstat(self.descriptor).st_size

    def reserve(self, num_bytes: int) -> None:
        """Makes the file exactly so long, with all of it allocated.

        Raises:
            PackError: there is no room; the message has the numbers, and the file is removed.
        """
        try:
            os.ftruncate(self.descriptor, num_bytes)
            os.posix_fallocate(self.descriptor, 0, num_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            os.unlink(self.path)
            raise PackError(self._describe_shortage(num_bytes, error)) from error

    def write(self, offset: int, data: memoryview) -> None:
        """Writes all of `data`, which lies on a page boundary and is whole blocks long."""
        while data:
            try:
                target = self._direct if self._direct >= 0 else self.descriptor
                num_written = os.pwrite(target, data, offset)
            except OSError as error:
                if error.errno == errno.EINVAL and self._direct >= 0:
                    os.close(self._direct)
                    self._direct = -1
                    continue
                raise
            if self._direct < 0:
                # What went through the page cache is written back and let go of.
                os.fdatasync(self.descriptor)
                os.posix_fadvise(self.descriptor, offset, num_written, os.POSIX_FADV_DONTNEED)
            offset += num_written
            data = data[num_written:]

    def publish(self, header: bytes) -> None:
        """Writes the final header and gives the file its name; after a crash it is all or nothing.

        Args:
            header: the file's first bytes from now on.
        """
        os.fsync(self.descriptor)
        os.pwrite(self.descriptor, header, 0)
        os.fsync(self.descriptor)
        os.rename(self.path, self.out_path)
        sync_folder(self.out_path)

    def _open_locked(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        while True:
            try:
                descriptor = os.open(self.path, flags, 0o644)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                    raise PackError(f"{self.path}: expected a regular file or nothing") from error
                raise
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise PackError(f"{self.path}: expected a regular file or nothing")
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Between opening and locking, another builder may have published this very file.
                if _names_same_file(self.path, descriptor):
                    return descriptor
            except BlockingIOError as error:
                os.close(descriptor)
                raise PackError(
                    f"{self.path}: another process is building this pack; wait for it, or end it"
                ) from error
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _describe_shortage(self, num_bytes: int, error: OSError) -> str:
        facts = os.statvfs(os.path.dirname(self.path) or ".")
        free_bytes = facts.f_bavail * facts.f_frsize
        return (
            f"{self.out_path}: cannot reserve {num_bytes} bytes for the pack: {error.strerror} "
            f"(errno {error.errno}); {free_bytes} bytes are free there; make room, or choose "
            f"another folder"
        )


def sync_folder(path: str) -> None:
    """Makes the name of a file last: fsync of the folder that holds it."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _names_same_file(path: str, descriptor: int) -> bool:
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
