"""The file that a pack is built in: one writer, room reserved, published in one step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import Self

from gramary.errors import PackError
from gramary.files.pack.header import MAGIC, PARTIAL_MAGIC
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
        PackError: another process is building it, something that is no part of a pack is there, or
            the file cannot be made or written to; what was written stays.
    """

    def __init__(self, out_path: str) -> None:
        self.out_path = out_path
        self.path = out_path + SUFFIX
        self.descriptor = -1
        self._direct = -1

    def __enter__(self) -> Self:
        self.descriptor = self._open_locked()
        with contextlib.suppress(OSError):
            # By descriptor: the same file, whatever became of its name.
            path = f"/proc/self/fd/{self.descriptor}"
            self._direct = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        return self

    def close(self) -> None:
        """Closes the file and gives up its lock; more calls do nothing."""
        if self.descriptor < 0:
            return
        if not self.num_bytes:
            # Nothing was begun.
            self.remove()
        for descriptor in (self._direct, self.descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self._direct = -1

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return os.fstat(self.descriptor).st_size

    def reserve(self, num_bytes: int) -> None:
        """Empties the file and makes it exactly so long, zeroed, with all of it allocated.

        Raises:
            PackError: there is no room; the message has the numbers, and the file is removed.
        """
        try:
            if self.num_bytes:
                # What another build left is gone from the storage before this one begins.
                os.ftruncate(self.descriptor, 0)
                os.fsync(self.descriptor)
            os.ftruncate(self.descriptor, num_bytes)
            os.posix_fallocate(self.descriptor, 0, num_bytes)
        except OSError as error:
            self.remove()
            raise PackError(
                f"{self.out_path}: cannot reserve {num_bytes} bytes for the pack: "
                f"{self._describe(error)}; make room, or choose another folder"
            ) from error

    def remove(self) -> None:
        """Removes the file: no build shall go on with it."""
        if _names_same_file(self.path, self.descriptor):
            os.unlink(self.path)

    def write(self, offset: int, data: memoryview) -> None:
        """Writes all of `data`, which lies on a page boundary and is whole blocks long."""
        while data:
            with self._telling(offset):
                num_written = self._write_some(offset, data)
            offset += num_written
            data = data[num_written:]

    def _write_some(self, offset: int, data: memoryview) -> int:
        if self._direct >= 0:
            try:
                return os.pwrite(self._direct, data, offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            os.close(self._direct)
            self._direct = -1
        num_written = os.pwrite(self.descriptor, data, offset)
        # What went through the page cache is written back and let go of.
        os.fdatasync(self.descriptor)
        os.posix_fadvise(self.descriptor, offset, num_written, os.POSIX_FADV_DONTNEED)
        return num_written

    def publish(self, header: bytes, time_ns: int) -> None:
        """Writes the final header and gives the file its name; after a crash it is all or nothing.

        Args:
            header: the file's first bytes from now on.
            time_ns: the time that the file says it was last written to.
        """
        with self._telling(0):
            os.fsync(self.descriptor)
            os.pwrite(self.descriptor, header, 0)
            os.utime(self.descriptor, ns=(time_ns, time_ns))
            os.fsync(self.descriptor)
            if not _names_same_file(self.path, self.descriptor):
                raise PackError(
                    f"{self.path}: was removed or replaced while the pack was built in it; build "
                    f"again"
                )
            if os.path.lexists(self.out_path):
                raise PackError(
                    f"{self.out_path}: something took this name while the pack was built; move it "
                    f"away and build again: {self.path} is complete"
                )
            os.rename(self.path, self.out_path)
            sync_folder(self.out_path)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(self.path, flags, 0o644)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise self._in_the_way() from error
            raise PackError(
                f"{self.path}: cannot be made: {error.strerror} (errno {error.errno}); choose a "
                f"folder that is there and may be written to"
            ) from error

    def _in_the_way(self) -> PackError:
        return PackError(
            f"{self.path}: expected a regular file with a part of a pack, or nothing; remove it, "
            f"or choose another name for the pack"
        )

    def _is_part_of_pack(self, descriptor: int) -> bool:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        # Nothing, or room for a header that was not written yet.
        magic = os.pread(descriptor, len(MAGIC), 0).rstrip(b"\0")
        return MAGIC.startswith(magic) or PARTIAL_MAGIC.startswith(magic)

    def _open_locked(self) -> int:
        while True:
            descriptor = self._open()
            try:
                if not self._is_part_of_pack(descriptor):
                    raise self._in_the_way()
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Between opening and locking, another builder may have published this very file.
                if _names_same_file(self.path, descriptor):
                    return descriptor
            except BlockingIOError as error:
                os.close(descriptor)
                raise PackError(
                    f"{self.path}: another process is building this pack; wait for it, or end it"
                ) from error
            except OSError as error:
                os.close(descriptor)
                raise PackError(
                    f"{self.path}: cannot be read and locked: {error.strerror} (errno "
                    f"{error.errno}); choose a folder on another file system"
                ) from error
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    @contextlib.contextmanager
    def _telling(self, offset: int) -> Iterator[None]:
        """Makes a system's error in the block one that says where, and what next."""
        try:
            yield
        except OSError as error:
            raise PackError(
                f"{self.path}: cannot be written at byte {offset}: {self._describe(error)}; what "
                f"was written stays: mend that, and build again to go on"
            ) from error

    def _describe(self, error: OSError) -> str:
        facts = os.fstatvfs(self.descriptor)
        free_bytes = facts.f_bavail * facts.f_frsize
        return f"{error.strerror} (errno {error.errno}); {free_bytes} bytes are free there"


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
