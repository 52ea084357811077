"""The private tmpfs folder in which processes share host rows, and the files in it.

`<folder>/gramary-<uid>` has mode 0700 and belongs to the user; in it, `<name>-<digest>.rows` is one
complete extent and `<name>-<digest>.filling` one that a process is filling. Whoever has a file in
use holds an flock on it: exclusive while filling, shared while reading. A lock ends with its
process, so a file that can be locked exclusively is used by nobody.
"""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import os
import re
import stat
from collections.abc import Iterator

from gramary.errors import ArgumentError, PlacementError
from gramary.lifetime import Closing

logger = logging.getLogger("gramary")

ROWS_SUFFIX = ".rows"
FILLING_SUFFIX = ".filling"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_ELSEWHERE = "set GRAMARY_SHARE_FOLDER to a tmpfs that this user may write to"
_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


def check_share_name(name: str) -> None:
    """Raises ArgumentError unless `name` can be part of a file's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArgumentError(
            f"share: expected 1 to 64 letters, digits, '_', '.' or '-', not beginning with '.' or "
            f"'-', got {name!r}"
        )


@dataclasses.dataclass(frozen=True)
class SharedFile:
    """One file of the folder.

    Attributes:
        file_name: its name in the folder.
        num_bytes: its size.
        is_complete: whether it holds a complete extent.
        is_used: whether a process has it in use.
    """

    file_name: str
    num_bytes: int
    is_complete: bool
    is_used: bool


class ShareFolder(Closing):
    """The user's folder below `root`, open and checked; a context manager.

    Args:
        root: folder of a tmpfs, such as /dev/shm.

    Raises:
        PlacementError: `root` is no tmpfs, or the folder is not the user's own and private.
    """

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, f"gramary-{os.geteuid()}")
        _check_memory_backed(root)
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise PlacementError(
                f"share: cannot make {self.path}: {error.strerror}; {_ELSEWHERE}"
            ) from error
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.descriptor = os.open(self.path, flags)
        except OSError as error:
            raise PlacementError(
                f"share: expected {self.path} to be a folder of this user, got {error.strerror}; "
                f"have it removed, or {_ELSEWHERE}"
            ) from error
        try:
            check_private(os.fstat(self.descriptor), self.path)
        except BaseException:
            self.close()
            raise

    def open(self, file_name: str, flags: int) -> int:
        """Returns a descriptor of a file in the folder, checked to be the user's own.

        Raises:
            FileNotFoundError: there is none and `flags` make none.
            PlacementError: it is a link, no regular file, or open to others.
        """
        path = os.path.join(self.path, file_name)
        try:
            descriptor = os.open(
                file_name,
                flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
                0o600,
                dir_fd=self.descriptor,
            )
        except FileNotFoundError:
            raise
        except OSError as error:
            raise PlacementError(
                f"share: cannot open {path}: {error.strerror}; remove it"
            ) from error
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
                raise PlacementError(
                    f"share: expected {path} to be a regular file of one name; remove it"
                )
            check_private(facts, path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def names_same_file(self, file_name: str, descriptor: int) -> bool:
        """Returns whether the folder's file of this name is the one behind the descriptor."""
        try:
            named = os.stat(file_name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        held = os.fstat(descriptor)
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

    def exists(self, file_name: str) -> bool:
        """Returns whether the folder has a file of this name."""
        try:
            os.stat(file_name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def publish(self, old_name: str, new_name: str) -> None:
        """Renames a file within the folder, in one step."""
        os.rename(old_name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, file_name: str) -> None:
        """Removes a file of the folder."""
        os.unlink(file_name, dir_fd=self.descriptor)

    def free_bytes(self) -> int:
        """Returns how many bytes the tmpfs has free."""
        facts = os.fstatvfs(self.descriptor)
        return facts.f_bavail * facts.f_frsize

    def files(self) -> Iterator[SharedFile]:
        """Yields the files of shared rows, by name; what is none of ours is told and left alone."""
        for file_name in sorted(os.listdir(self.descriptor)):
            if not file_name.endswith((ROWS_SUFFIX, FILLING_SUFFIX)):
                continue
            try:
                descriptor = self.open(file_name, os.O_RDONLY)
            except FileNotFoundError:
                continue
            except PlacementError as error:
                logger.warning("%s; it was left alone", error)
                continue
            try:
                num_bytes, is_used = os.fstat(descriptor).st_size, not try_lock(descriptor)
            finally:
                # The lock goes with it.
                os.close(descriptor)
            yield SharedFile(file_name, num_bytes, file_name.endswith(ROWS_SUFFIX), is_used)

    def prune(self, *, dry_run: bool = False) -> tuple[SharedFile, ...]:
        """Removes what nobody uses and returns it.

        Args:
            dry_run: remove nothing, only return what would be.
        """
        unused = []
        for file in self.files():
            if file.is_used:
                continue
            if dry_run or self._remove_unused(file.file_name):
                unused.append(file)
        return tuple(unused)

    def close(self) -> None:
        """Closes the folder; a second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def _remove_unused(self, file_name: str) -> bool:
        """Removes a file unless somebody took it into use meanwhile."""
        try:
            descriptor = self.open(file_name, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            # Under the lock nobody can begin to use it: they look again once they have theirs.
            if not try_lock(descriptor) or not self.names_same_file(file_name, descriptor):
                return False
            self.remove(file_name)
        finally:
            os.close(descriptor)
        return True


def try_lock(descriptor: int) -> bool:
    """Takes the exclusive lock of a file unless somebody else has a lock on it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def check_private(facts: os.stat_result, path: str) -> None:
    """Raises PlacementError unless the user owns it and nobody else may use it."""
    if facts.st_uid != os.geteuid():
        raise PlacementError(
            f"share: expected {path} to belong to user {os.geteuid()}, it belongs to user "
            f"{facts.st_uid}; have it removed, or {_ELSEWHERE}"
        )
    if stat.S_IMODE(facts.st_mode) & 0o077:
        raise PlacementError(
            f"share: expected {path} to be closed to other users, its mode is "
            f"{stat.S_IMODE(facts.st_mode):04o}; run: chmod go= {path}"
        )


def _check_memory_backed(root: str) -> None:
    try:
        device = os.stat(root).st_dev
    except OSError as error:
        raise PlacementError(f"share: cannot use {root}: {error.strerror}; {_ELSEWHERE}") from error
    wanted = f"{os.major(device)}:{os.minor(device)}"
    # Source: proc_pid_mountinfo(5); the type follows the separator "-".
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            fields = line.split()
            if fields[2] == wanted:
                kind = fields[fields.index("-") + 1]
                if kind in _MEMORY_FILE_SYSTEMS:
                    return
                raise PlacementError(
                    f"share: expected {root} to be a tmpfs, it is on {kind}; {_ELSEWHERE}"
                )
    raise PlacementError(
        f"share: expected {root} to be a tmpfs, it is no mount of this process; {_ELSEWHERE}"
    )
