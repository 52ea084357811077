"""Host rows that many processes share: filled by one of them, mapped read-only by the others."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import logging
import mmap
import os

import torch
import xxhash

from gramary.errors import CapacityError, PlacementError
from gramary.model.codecs import Codec
from gramary.native.memory import FileMapping
from gramary.placement.grammar import format_bytes
from gramary.tiers.share_folder import (
    FILLING_SUFFIX,
    ROWS_SUFFIX,
    ShareFolder,
    check_share_name,
    try_lock,
)

logger = logging.getLogger("gramary")


@dataclasses.dataclass(frozen=True)
class ShareKey:
    """What a file of shared rows is called: processes that agree on it share it.

    Attributes:
        root: folder of a tmpfs.
        name: what the user called it.
        model_id: identity of the table.
        codec: how its rows are encoded.
        versions: size, modification time and change time (ns) of each of the table's files: the
            identity looks at some rows only, and rows of a file that was changed since are others.

    Raises:
        ArgumentError: the name cannot be part of a file's name.
    """

    root: str
    name: str
    model_id: str
    codec: Codec
    versions: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        check_share_name(self.name)

    @property
    def prefix(self) -> str:
        """What the names of all extents of this table begin with."""
        facts = json.dumps([self.model_id, dataclasses.asdict(self.codec), self.versions])
        return f"{self.name}-{xxhash.xxh3_128_hexdigest(facts.encode())}-"

    def shared_bytes(self) -> int:
        """Returns the bytes of this table's extents: memory that need not be free.

        Those that are still being filled have their memory, whoever goes on filling them.
        """
        with ShareFolder(self.root) as folder:
            return sum(
                file.num_bytes for file in folder.files() if file.file_name.startswith(self.prefix)
            )


class SharedMapping:
    """One extent's rows in the share folder, mapped; stands in for a `HostMapping`.

    The first process fills it and calls `publish`; until then others wait. All later ones map the
    published file read-only. Where a filler ends without publishing, the next one fills anew.

    Args:
        key: which table, under which name.
        first_row: first row of the extent.
        num_rows: its rows.

    Attributes:
        num_bytes: bytes of the rows.
        is_filled: whether the rows are there; false only for the filler until `publish`.
        descriptor: of the file, owned by this object.

    Raises:
        PlacementError: the folder or a file in it is not the user's own and private.
        CapacityError: the tmpfs has too little room; the message has the numbers.
    """

    huge_bytes = 0
    on_numa_node = False
    page_bytes = mmap.PAGESIZE

    def __init__(self, key: ShareKey, first_row: int, num_rows: int) -> None:
        self.num_bytes = num_rows * key.codec.row_bytes
        stem = f"{key.prefix}{first_row}-{num_rows}"
        self._rows_name, self._filling_name = stem + ROWS_SUFFIX, stem + FILLING_SUFFIX
        self.descriptor = -1
        self.is_filled = False
        self._mapping: FileMapping | None = None
        self._folder = ShareFolder(key.root)
        try:
            self._take_file()
            self._map()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        """Where the rows are, or will be once they are complete."""
        return os.path.join(self._folder.path, self._rows_name)

    @property
    def mapped_bytes(self) -> int:
        """Bytes mapped: `num_bytes` rounded up to whole pages."""
        return -(-self.num_bytes // self.page_bytes) * self.page_bytes

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self._mapped().address

    def hold(self) -> object:
        """Returns what keeps the memory mapped as long as it is kept."""
        return self._mapped().hold()

    def populate(self) -> None:
        """Does nothing: the pages were taken when the file was made."""

    def tensor(self) -> torch.Tensor:
        """Returns the memory as uint8 [num_bytes]; not to be written to once it is filled."""
        return self._mapped().tensor()[: self.num_bytes]

    def publish(self) -> None:
        """Lets other processes see the rows; only for the filler, once all rows are in."""
        if self.is_filled:
            raise AssertionError("the rows were published before")
        self._folder.publish(self._filling_name, self._rows_name)
        fcntl.flock(self.descriptor, fcntl.LOCK_SH)
        self.is_filled = True

    def close(self) -> None:
        """Gives the mapping and the lock back, and removes what was not published; repeatable."""
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
        if self.descriptor >= 0:
            if not self.is_filled and self._folder.names_same_file(
                self._filling_name, self.descriptor
            ):
                self._folder.remove(self._filling_name)
            os.close(self.descriptor)
            self.descriptor = -1
        self._folder.close()

    def _take_file(self) -> None:
        while self.descriptor < 0:
            self._try_attach()
            if self.descriptor < 0:
                self._try_fill()

    def _try_attach(self) -> None:
        """Opens the published file, if there is one and it stays."""
        try:
            descriptor = self._folder.open(self._rows_name, os.O_RDONLY)
        except FileNotFoundError:
            return
        # Waits at most for a prune that is removing it.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not self._folder.names_same_file(self._rows_name, descriptor):
            os.close(descriptor)
            return
        num_bytes = os.fstat(descriptor).st_size
        if num_bytes != self.mapped_bytes:
            os.close(descriptor)
            raise PlacementError(
                f"share: expected {self.path} to have {self.mapped_bytes} bytes, it has "
                f"{num_bytes}; remove it"
            )
        self.descriptor, self.is_filled = descriptor, True

    def _try_fill(self) -> None:
        """Makes the file to fill, or waits until whoever is filling it has done so or ended."""
        descriptor = self._folder.open(self._filling_name, os.O_RDWR | os.O_CREAT)
        try:
            if not try_lock(descriptor):
                logger.info("share: waiting for the process that fills %s", self.path)
                # A shared lock: a filler that is done keeps one for as long as it serves.
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                return
            is_ours = self._folder.names_same_file(self._filling_name, descriptor)
            if is_ours and self._folder.exists(self._rows_name):
                self._folder.remove(self._filling_name)
                is_ours = False
            if is_ours:
                self._reserve(descriptor)
                self.descriptor = descriptor
        finally:
            if self.descriptor < 0:
                os.close(descriptor)

    def _reserve(self, descriptor: int) -> None:
        """Takes all pages of the file, zeroed, so that filling it cannot run out of memory."""
        free_bytes = 0
        try:
            os.ftruncate(descriptor, 0)
            free_bytes = self._folder.free_bytes()
            if free_bytes < self.mapped_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(descriptor, self.mapped_bytes)
            os.posix_fallocate(descriptor, 0, self.mapped_bytes)
        except OSError as error:
            os.ftruncate(descriptor, 0)
            self._folder.remove(self._filling_name)
            raise CapacityError(
                f"share: {self.path} needs {self.mapped_bytes:,} bytes "
                f"({format_bytes(self.mapped_bytes)}), but its tmpfs has {free_bytes:,} free "
                f"({error.strerror}); make it larger (mount -o remount,size=...), run `gramary "
                f"prune`, or open the table without share"
            ) from error

    def _map(self) -> None:
        self._mapping = FileMapping(
            self.descriptor, self.mapped_bytes, is_writable=not self.is_filled
        )

    def _mapped(self) -> FileMapping:
        if self._mapping is None:
            raise AssertionError("the mapping was closed")
        return self._mapping
