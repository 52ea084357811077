"""The ring without a library: what the kernel refuses or takes back, and how it is told.

Refusals are made by seccomp filters of single threads, so that no child process is needed.
"""

import errno
import logging
import mmap
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from disk_stage import make_rows, write_layout
from seccomp import IO_URING_ENTER, IO_URING_REGISTER, IO_URING_SETUP
from syscall_supervisor import Supervised, run_forbidden, run_supervised

import gramary.native.disk
from gramary.cli import probes
from gramary.errors import UnsupportedError
from gramary.files.layout import RowLayout
from gramary.native.disk import DiskReader
from gramary.native.raw_disk import read_blocks_raw, try_io_uring

pytestmark = pytest.mark.needs("io_uring", "seccomp")

# Few reads go through a ring that the caller borrows, many through lanes with a ring each.
LENT, LANES = 200, 4400
CALLS = {"io_uring_setup": IO_URING_SETUP, "io_uring_enter": IO_URING_ENTER}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[RowLayout, torch.Tensor]:
    rows = make_rows(9000, 4096)
    return write_layout(tmp_path_factory.mktemp("table"), rows, splits=(4000,)), rows


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list]:
    """What the reader has logged, as if nothing had been said before."""
    monkeypatch.setattr(gramary.native.disk, "_said", set())
    caplog.set_level(logging.WARNING, "gramary")
    return lambda: [record.getMessage() for record in caplog.records]


def read_some(reader: DiskReader, rows: torch.Tensor, num_rows: int) -> None:
    """Reads random rows, none of them next to another, and compares them."""
    row_ids = torch.randperm(len(rows) // 2)[:num_rows] * 2
    out = torch.full((num_rows, rows.shape[1]), 0xA5, dtype=torch.uint8)
    reader.read(row_ids, out)
    assert torch.equal(out, rows[row_ids])


def drop_cache(layout: RowLayout) -> None:
    for file in layout.files:
        descriptor = os.open(file.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@pytest.mark.behaviour(30, 36)
@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.ENOMEM], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS)
def test_a_refused_call_is_the_reason_everywhere(table, said, call: str, code: int) -> None:
    """Behaviours 30, 36: pread reads; log, statistics, error and doctor name call and reason."""
    layout, rows = table
    reason = f"{call}: {os.strerror(code)}"
    note = f"io_uring is not available, rows are read by pread: {reason}"
    num_open = len(os.listdir("/proc/self/fd"))

    def read() -> None:
        for _ in range(2):
            reader = DiskReader(layout)
            for num_rows in (3, LENT, LANES):
                read_some(reader, rows, num_rows)
            stats = reader.stats()
            assert (stats["reader"], stats["reader_note"]) == ("pread", note)
            reader.close()
        with pytest.raises(UnsupportedError, match=f"io_uring is not available: {reason}"):
            DiskReader(layout, reader="io_uring")
        for folder in (None, Path(layout.files[0].path).parent):
            findings = {finding.name: finding for finding in probes.probe_reading(folder)}
            assert findings["io_uring"].answer == "no"
            assert findings["io_uring"].detail == f"{reason}; pread is used"
            assert findings["io_uring"].remedy not in ("", "pread serves as well")
        with pytest.raises(OSError, match=os.strerror(code)):
            read_blocks_raw(layout.files[0].path, torch.zeros(9).long(), 4096, 1, 4)

    run_forbidden({CALLS[call]: code}, read)
    assert said() == [note]
    assert len(os.listdir("/proc/self/fd")) == num_open


@pytest.mark.behaviour(30)
@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.EPERM, "allowing io_uring_register helps"), (errno.ENOMEM, "RLIMIT_MEMLOCK")],
)
@pytest.mark.needs("io_uring_registration")
def test_without_registration_the_ring_reads(table, said, code: int, remedy: str) -> None:
    """Behaviour 30: plain memory and files; log, statistics and doctor name what is missing."""
    layout, rows = table

    def read() -> None:
        reader = DiskReader(layout)
        for num_rows in (3, LENT, LANES):
            drop_cache(layout)
            read_some(reader, rows, num_rows)
        stats = reader.stats()
        assert (stats["reader"], stats["num_retries"]) == ("io_uring", 0)
        assert os.strerror(code) in stats["reader_note"]
        assert remedy in stats["reader_note"]
        assert said() == [stats["reader_note"]]
        read_blocks_raw(layout.files[0].path, torch.arange(50) * 4096, 4096, 2, 4)
        assert try_io_uring(layout.files[0].path) == (0, stats["reader_note"])
        reader.close()

    run_forbidden({IO_URING_REGISTER: code}, read)


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN, errno.EBUSY], ids=errno.errorcode.get)
@pytest.mark.needs("supervised_calls")
def test_a_call_that_fails_for_the_moment_is_made_again(table, code: int) -> None:
    """Behaviour 32: signals and shortage of memory in the kernel leave no trace."""
    layout, rows = table

    def read(supervised: Supervised) -> None:
        # Of every three calls two fail.
        supervised.judge = lambda _: code if supervised.num_calls % 3 else 0
        for num_rows in (1, LENT, LANES):
            drop_cache(layout)
            read_some(reader, rows, num_rows)
        assert len(supervised.thread_ids) > 1
        assert supervised.num_calls > 100

    reader = DiskReader(layout, reader="io_uring")
    run_supervised(IO_URING_ENTER, read)
    stats = reader.stats()
    assert (stats["reader"], stats["reader_note"]) == ("io_uring", "")
    assert stats["num_retries"] == stats["num_failures"] == 0
    reader.close()


@pytest.mark.behaviour(30)
@pytest.mark.parametrize("num_rows", [LENT, LANES], ids=["lent", "lanes"])
@pytest.mark.needs("supervised_calls")
def test_a_ring_that_is_forbidden_later_gives_way_to_pread(table, said, num_rows: int) -> None:
    """Behaviour 30: the batch that meets it comes whole, the later ones without a try."""
    layout, rows = table
    note = f"io_uring was lost, rows are read by pread: io_uring_enter: {os.strerror(errno.EPERM)}"

    def read(supervised: Supervised) -> None:
        drop_cache(layout)
        read_some(reader, rows, num_rows)
        assert (threading.get_native_id() in supervised.thread_ids) == (num_rows == LENT)
        num_calls = supervised.num_calls
        # In the middle of a batch: some reads are under way.
        supervised.judge = lambda _: errno.EPERM if supervised.num_calls > num_calls + 3 else 0
        for _ in range(3):
            drop_cache(layout)
            read_some(reader, rows, num_rows)
        num_calls = supervised.num_calls
        read_some(reader, rows, 3)
        read_some(reader, rows, num_rows)
        assert supervised.num_calls == num_calls

    reader = DiskReader(layout, reader="io_uring")
    run_supervised(IO_URING_ENTER, read)
    assert said() == []
    for _ in range(2):
        stats = reader.stats()
        assert (stats["reader"], stats["reader_note"]) == ("pread", note)
    assert said() == [note]
    assert stats["num_failures"] == 0
    reader.close()


@pytest.mark.behaviour(30)
@pytest.mark.parametrize("num_rows", [LENT, LANES], ids=["lent", "lanes"])
@pytest.mark.needs("supervised_calls")
def test_a_ring_that_breaks_once_is_replaced(table, num_rows: int) -> None:
    """Behaviour 30: what one shortage broke, the next batches have again; the reason stays."""
    layout, rows = table

    def read(supervised: Supervised) -> None:
        drop_cache(layout)
        read_some(reader, rows, LANES)
        supervised.judge = lambda _: errno.EAGAIN
        drop_cache(layout)
        read_some(reader, rows, num_rows)
        supervised.judge = lambda _: 0
        num_calls = supervised.num_calls
        drop_cache(layout)
        read_some(reader, rows, num_rows)
        assert supervised.num_calls > num_calls

    reader = DiskReader(layout, reader="io_uring")
    run_supervised(IO_URING_ENTER, read)
    stats = reader.stats()
    reason = f"io_uring_enter: {os.strerror(errno.EAGAIN)}"
    assert stats["reader"] == "io_uring"
    assert stats["reader_note"].endswith(f"some batches were read by pread: {reason}")
    assert stats["num_failures"] == 0
    reader.close()


@pytest.mark.needs("supervised_calls")
def test_descriptors_that_run_out_are_no_loss(table) -> None:
    """A second ring at the same time finds no descriptor: pread reads, and rings come again."""
    layout, rows = table

    def read(supervised: Supervised) -> None:
        supervised.judge = lambda _: errno.EMFILE
        drop_cache(layout)
        read_some(reader, rows, LENT)
        assert supervised.num_calls == 0, "the first ring is there"
        read_some(reader, rows, LANES)
        assert supervised.num_calls > 0, "lanes want one each"

    reader = DiskReader(layout, reader="io_uring")
    run_supervised(IO_URING_SETUP, read)
    stats = reader.stats()
    assert stats["reader"] == "io_uring"
    reason = f"io_uring_setup: {os.strerror(errno.EMFILE)}, at most "
    assert f"some batches were read by pread: {reason}" in stats["reader_note"]
    assert stats["reader_note"].endswith(" may be open in this process (ulimit -n)")
    reader.close()


def test_a_child_leaves_the_rings_to_its_parent(table) -> None:
    """What a forked child has mapped where a parent's ring had its memory outlives the reader."""
    layout, rows = table
    reader = DiskReader(layout, reader="io_uring")
    row_ids = torch.arange(100)
    out = torch.empty(100, 4096, dtype=torch.uint8)
    reader.read(row_ids, out)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # The kernel gives addresses from the highest gap down; some fill the ring's.
            mine = [mmap.mmap(-1, size) for size in (4096, 512 << 10) for _ in range(64)]
            stats = reader.stats()
            assert stats["reader"] == "pread"
            assert "parent" in stats["reader_note"]
            reader.close()
            for memory in mine:
                memory[: len(memory)] = b"x" * len(memory)
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    assert not os.WIFSIGNALED(status), signal.Signals(os.WTERMSIG(status)).name
    assert status == 0
    read_some(reader, rows, 100)
    assert reader.stats()["reader"] == "io_uring"
    reader.close()


def test_more_reads_in_flight_than_a_ring_can_hold_are_refused(table) -> None:
    layout, _ = table
    path = layout.files[0].path
    with pytest.raises(OSError, match="Invalid argument"):
        read_blocks_raw(path, torch.zeros(1 << 17).long(), 4096, 1, 1 << 17)
    read_blocks_raw(path, torch.arange(2000) % 100 * 4096, 4096, 1, 1000)
