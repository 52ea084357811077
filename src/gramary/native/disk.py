"""Reading encoded rows from files: positioned and direct reads of the C++ core."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch

import gramary.native._core as _core
from gramary.errors import ArgumentError, ClosedError, RowIdError
from gramary.native.gate import Gate

_logger = logging.getLogger("gramary")
_said: set[str] = set()


class Layout(Protocol):
    """Where rows lie in files: a `files.layout.RowLayout`, whose parts the core reads by name."""

    @property
    def files(self) -> Sequence[LaidOutFile]:
        """The files, as they were found."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one encoded row."""

    @property
    def num_rows(self) -> int:
        """Rows of the table."""


class LaidOutFile(Protocol):
    """A file of a layout."""

    @property
    def path(self) -> str:
        """What errors call it."""


class DiskReader:
    """Reads encoded rows of one table from its files; any number of threads may call `read`.

    Args:
        layout: where the rows lie.
        reader: "auto" reads through io_uring where the kernel allows it, else through a pool of
            positioned reads, and says so once; "io_uring", "pread" and "mmap" insist.
        direct_io: whether large batches that miss the page cache may bypass it.
        num_threads: threads of the pread pool; 0 lets the core choose.
        mmap_budget_bytes: resident size that the mappings of "mmap" are kept under.

    Raises:
        RowReadError: a file cannot be opened, or is not the one whose layout was read (ESTALE);
            no descriptor stays open.
        UnsupportedError: this machine does not allow the reader insisted on.
        ArgumentError: the layout is inconsistent.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        reader: str = "auto",
        direct_io: bool = True,
        num_threads: int = 0,
        mmap_budget_bytes: int = 256 << 20,
    ) -> None:
        self.row_bytes = layout.row_bytes
        self.num_rows = layout.num_rows
        self._paths = [file.path for file in layout.files]
        self._gate = Gate(ClosedError, "the disk reader was closed")
        try:
            self._core = _core.DiskReader(
                layout,
                reader=reader,
                direct_io=direct_io,
                num_threads=num_threads,
                mmap_budget_bytes=mmap_budget_bytes,
            )
        except ValueError as error:
            raise ArgumentError(str(error)) from None
        self._say_notes()

    @property
    def address(self) -> int:
        """Address of the core's reader; it must not be used after `close` without a hold."""
        return int(self._core.address())

    def hold(self) -> object:
        """Returns what keeps the core's reader, as long as it is kept; beyond `close` too."""
        return self._core.hold()

    def read(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Fills out[i] with the encoded row `row_ids[i]`; each block is read once in 262,144 rows.

        Args:
            row_ids: int64 [n] on the CPU, contiguous, each from 0 to num_rows - 1.
            out: uint8 [n, row_bytes] on the CPU, contiguous.

        Raises:
            RowReadError: reading failed, or a file is shorter than it was; `out` is unspecified
                and the next call starts afresh. With ESTALE, a file with some of the rows was
                replaced (a rename over its name) or, if its blocks have no checksums, written to
                since it was opened: looked for after the reads, by its change time. A link that
                was pointed elsewhere is looked for once a second.
            ChecksumError: a block of a pack was altered.
            RowIdError: a row id lies outside the table.
            ClosedError: the reader was closed.
            ArgumentError: a tensor is of the wrong dtype, shape or device.
        """
        if row_ids.dtype != torch.int64 or row_ids.ndim != 1 or not row_ids.is_contiguous():
            raise ArgumentError(
                f"row_ids: expected contiguous int64 [n], got {row_ids.dtype} "
                f"{tuple(row_ids.shape)}"
            )
        count = row_ids.shape[0]
        if (
            out.dtype != torch.uint8
            or out.shape != (count, self.row_bytes)
            or not out.is_contiguous()
            or out.device.type != "cpu"
            or row_ids.device.type != "cpu"
        ):
            raise ArgumentError(
                f"out: expected contiguous uint8 [{count}, {self.row_bytes}] on the CPU, got "
                f"{out.dtype} {tuple(out.shape)} on {out.device}"
            )
        if count == 0:
            return
        with self._gate.using:
            try:
                self._core.read(row_ids.data_ptr(), count, out.data_ptr())
            except IndexError as error:
                raise RowIdError(str(error)) from None

    def stats(self) -> dict[str, int | float | str]:
        """Returns a snapshot of the counters since the reader was opened, by name.

        Distinct rows and blocks are counted in each 262,144 rows of a batch. `amplification` is
        bytes read over bytes of rows asked for; times in `*_ns` are spent in
        planning, in reading from the page cache (large batches), in the backend, and of that in
        handing reads in, in waiting for the storage and in checking and copying (io_uring, summed
        over its threads). `reader` is how rows are read now, and `reader_note` what the machine
        does not grant, with the kernel's reason: no io_uring, no registered buffers, no direct
        reads. It is empty where nothing is missing; what is new in it is logged.
        """
        with self._gate.using:
            self._say_notes()
            counters: dict[str, int | float | str] = dict(self._core.stats())
            asked_bytes = int(counters["row_bytes"])
            counters["amplification"] = int(counters["read_bytes"]) / max(1, asked_bytes)
            counters["reader"] = self._core.backend_name()
            counters["reader_note"] = "; ".join(self._core.notes())
            counters["direct_alignment"] = self._core.direct_alignment()
        return counters

    def find_changed_file(self) -> str | None:
        """Returns the path of a file that was changed or replaced since it was opened, or None."""
        with self._gate.using:
            changed = self._core.find_changed()
        return None if changed < 0 else self._paths[changed]

    def set_script(self, faults: torch.Tensor) -> None:
        """Lets later batches fail or wait, for tests; not while a read is running.

        Args:
            faults: int64 [n, 4]: batch (from 0, counted from now), delay in us, errno (0 for a
                short read, -1 for none), bytes of the first read before it fails.
        """
        if faults.dtype != torch.int64 or faults.ndim != 2 or not faults.is_contiguous():
            raise ArgumentError(f"faults: expected contiguous int64 [n, 4], got {faults.dtype}")
        with self._gate.using:
            self._core.set_script(faults.data_ptr(), len(faults))

    def close(self) -> None:
        """Waits for running reads and gives descriptors and threads back; repeatable."""
        self._gate.close()
        if "_core" in vars(self):
            self._say_notes()
        # Its destructor gives everything back; a second call finds nothing.
        vars(self).pop("_core", None)

    def _say_notes(self) -> None:
        for note in self._core.notes():
            # What is after the colon, such as a file's name, makes no other message of it.
            what = note.partition(":")[0]
            if what not in _said:
                _said.add(what)
                _logger.warning(note)
