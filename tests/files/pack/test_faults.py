"""Storage that fails, files of others in the way, sources that change: told, and nothing spoilt."""

import errno
import fcntl
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from files.pack.conftest import write_source

from gramary.errors import GramaryError, PackError, RowReadError
from gramary.files.pack import build_pack, open_pack, recoding, verify_pack
from gramary.files.stream import read_in_order, read_rows


@pytest.fixture
def source(make_source, monkeypatch):
    """A table that is packed in many chunks."""
    monkeypatch.setattr(recoding, "CHUNK_BYTES", 1 << 16)
    return make_source("fp8", row_dim=160, base=3000)[0]


def failing(function: Callable, code: int, calls: range) -> Callable:
    """A system call that fails with an errno at some of its calls."""
    count = iter(range(1 << 30))

    def call(*arguments, **options):
        if next(count) in calls:
            raise OSError(code, os.strerror(code))
        return function(*arguments, **options)

    return call


@pytest.mark.behaviour(32, 36)
@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EDQUOT"])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
def test_storage_that_fails_is_named_and_the_next_build_goes_on(
    source, tmp_path, monkeypatch, call, code
) -> None:
    """Behaviours 32 and 36: file, offset, errno and free bytes, and that building again goes on."""
    build_pack(source, tmp_path / "whole.pack")
    path, number = tmp_path / "table.pack", getattr(errno, code)
    for first in (0, 1, 5) if call == "pwrite" else (0,):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(getattr(os, call), number, range(first, 1 << 20)))
            with pytest.raises(PackError) as caught:
                build_pack(source, path)
        message = str(caught.value)
        assert message.startswith(f"{path}.partial: cannot be written at byte ")
        assert f"(errno {number})" in message
        assert "bytes are free there" in message
        assert "build again to go on" in message
        assert not path.exists()
    assert build_pack(source, path).outcome == "resumed"
    assert path.read_bytes() == (tmp_path / "whole.pack").read_bytes()


@pytest.mark.behaviour(8)
@pytest.mark.parametrize("job", ["build", "recode", "verify"])
def test_what_fails_half_way_ends_its_threads_at_once(source, tmp_path, monkeypatch, job) -> None:
    """Behaviour 8: a collector that came upon them later could stand in a thread that starts."""
    path = tmp_path / "table.pack"
    if job == "verify":
        build_pack(source, path)
    work = {
        "build": lambda: build_pack(source, path),
        "recode": lambda: build_pack(source, path, codec="nvfp4"),
        "verify": lambda: verify_pack(path, against=source),
    }[job]
    before = {thread.name for thread in threading.enumerate()}
    os_call = "pwrite" if job == "build" else "preadv"
    patched = failing(getattr(os, os_call), errno.EIO, range(5, 1 << 20))
    gc.disable()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, os_call, patched)
            with pytest.raises(GramaryError) as caught:
                work()
        assert {thread.name for thread in threading.enumerate()} <= before
        held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
        assert not [name for name in held if name.startswith(str(tmp_path))]
    finally:
        gc.enable()
    assert caught.value


def test_writes_and_reads_that_come_in_pieces(source, tmp_path, monkeypatch) -> None:
    """Network file systems and signals cut them short: all bytes are written, all are checked."""
    build_pack(source, tmp_path / "whole.pack")
    whole = (tmp_path / "whole.pack").read_bytes()
    pwrite, preadv = os.pwrite, os.preadv
    piece = 3 * 4096
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:piece], at))
    monkeypatch.setattr(os, "preadv", lambda file, rooms, at: preadv(file, [rooms[0][:piece]], at))
    path = tmp_path / "table.pack"
    build_pack(source, path)
    assert path.read_bytes() == whole
    verify_pack(path, against=source)
    # A block in the middle that does not check is found, and all after it are written anew.
    spoilt = bytearray(whole)
    spoilt[len(whole) // 2] ^= 1
    Path(f"{path}.partial").write_bytes(spoilt)
    path.unlink()
    report = build_pack(source, path)
    assert report.outcome == "resumed"
    assert source.spec.num_rows // 3 < report.num_rows_written < source.spec.num_rows
    assert path.read_bytes() == whole


@pytest.mark.behaviour(32)
def test_a_pack_that_cannot_be_read_is_named(source, tmp_path, monkeypatch) -> None:
    """Behaviour 32: verify and resuming give file, offset and errno."""
    path = tmp_path / "table.pack"
    build_pack(source, path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing(os.preadv, errno.EIO, range(1 << 20)))
        with pytest.raises(RowReadError) as caught:
            verify_pack(path)
        assert (caught.value.file, caught.value.errno) == (str(path), errno.EIO)
        assert caught.value.offset >= 4096
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", failing(os.pread, errno.EIO, range(1 << 20)))
        with pytest.raises(PackError, match=r"cannot be read: .* \(errno 5\)"):
            open_pack(path)
    verify_pack(path)


@pytest.mark.behaviour(36)
@pytest.mark.parametrize("content", [b"precious", b"GRAMPACT" * 600, b"\0\0\0x" * 3000, b"GRAMx"])
def test_somebody_elses_file_of_the_partials_name_is_left_alone(source, tmp_path, content) -> None:
    """Behaviour 36: what is no part of a pack is not overwritten; the message says what to do."""
    partial = tmp_path / "table.pack.partial"
    partial.write_bytes(content)
    with pytest.raises(PackError, match="remove it, or choose another name"):
        build_pack(source, tmp_path / "table.pack")
    assert partial.read_bytes() == content
    assert not (tmp_path / "table.pack").exists()


def test_what_takes_the_name_meanwhile_is_left_alone(source, tmp_path) -> None:
    """The pack is complete under the other name, and takes its own once that is free."""
    path = tmp_path / "table.pack"
    with pytest.raises(PackError, match="something took this name while the pack was built"):
        build_pack(source, path, progress=lambda *_: path.write_bytes(b"precious") and None)
    assert path.read_bytes() == b"precious"
    path.unlink()
    report = build_pack(source, path)
    assert (report.outcome, report.num_rows_written) == ("resumed", 0)
    verify_pack(path, against=source)


@pytest.mark.behaviour(36)
@pytest.mark.parametrize(
    "where",
    [
        "missing/table.pack",
        "file/table.pack",
        pytest.param("locked/table.pack", marks=pytest.mark.needs("ordinary_user")),
    ],
)
def test_a_folder_that_cannot_be_written_to_is_named(source, tmp_path, where) -> None:
    """Behaviour 36: which file, why, and what to choose instead."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(PackError, match=r"cannot be made: .* \(errno \d+\); choose a folder"):
        build_pack(source, tmp_path / where)


@pytest.mark.behaviour(36)
def test_a_file_system_without_locks_is_named(source, tmp_path, monkeypatch) -> None:
    """Behaviour 36: two writers are not to be told apart there."""
    monkeypatch.setattr(fcntl, "flock", failing(fcntl.flock, errno.ENOLCK, range(9)))
    with pytest.raises(PackError, match=r"locked: .* \(errno 37\); choose a folder on another"):
        build_pack(source, tmp_path / "table.pack")


def rewrite(path: str) -> None:
    """Changes bytes of a file in place; its time is a later one."""
    with open(path, "r+b") as file:
        file.seek(500)
        file.write(b"other rows")
    os.utime(path, ns=(time.time_ns() + 10**9,) * 2)


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("codec", ["keep", "nvfp4"])
def test_a_source_that_changes_while_it_is_packed_gives_no_pack(source, tmp_path, codec) -> None:
    """Behaviour 32: never rows of two tables in one file whose checksums are right."""
    path, victim = tmp_path / "table.pack", source.layout.files[0].path

    def spoil(done_bytes: int, total_bytes: int) -> None:
        if total_bytes // 2 < done_bytes < total_bytes:
            rewrite(victim)

    with pytest.raises(RowReadError) as caught:
        build_pack(source, path, codec=codec, progress=spoil)
    assert (caught.value.file, caught.value.errno) == (victim, errno.ESTALE)
    assert list(tmp_path.glob("table.pack*")) == []


@pytest.mark.behaviour(29, 32)
@pytest.mark.parametrize("codec", ["keep", "nvfp4"])
def test_a_build_that_is_killed_after_its_source_changed_leaves_nothing_to_go_on_with(
    source, tmp_path, codec
) -> None:
    """What was read before the change must not be taken up as rows of the changed source."""
    path, calls = tmp_path / "table.pack", []

    def spoil_and_die(done_bytes: int, _: int) -> None:
        calls.append(done_bytes)
        if len(calls) == 3:
            rewrite(source.layout.files[0].path)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with pytest.raises(RowReadError) as caught:
        build_pack(source, path, codec=codec, progress=spoil_and_die)
    assert caught.value.errno == errno.ESTALE
    assert len(calls) in (3, 4), "told at once, or behind the chunk that was being read"
    assert list(tmp_path.glob("table.pack*")) == []


@pytest.mark.behaviour(29)
def test_a_source_that_changes_behind_its_last_row_is_newer_than_its_pack(source, tmp_path) -> None:
    """The pack is right for what was read; the next build must look at what is there now."""
    path, victim = tmp_path / "table.pack", source.layout.files[0].path

    def spoil(done_bytes: int, total_bytes: int) -> None:
        if done_bytes == total_bytes:
            # Later than any tick of the file system's clock in which the build began.
            time.sleep(0.05)
            Path(victim).touch()

    assert build_pack(source, path, progress=spoil).outcome == "built"
    assert os.stat(path).st_mtime_ns < os.stat(victim).st_mtime_ns


@pytest.mark.behaviour(32)
def test_a_source_that_changes_while_it_is_loaded_is_refused(source) -> None:
    """Behaviour 32: memory never holds rows of two tables."""
    out = torch.empty(source.layout.num_rows, source.layout.row_bytes, dtype=torch.uint8)
    chunks = read_in_order(source.layout, 0, out, chunk_bytes=1 << 16)
    next(chunks)
    rewrite(source.layout.files[0].path)
    with pytest.raises(RowReadError) as caught:
        next(chunks)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.behaviour(29)
def test_a_source_that_changed_since_the_kill_is_packed_from_the_start(
    make_source, tmp_path
) -> None:
    """Behaviour 29: also where its identity, which is taken from samples, stayed the same."""
    source, rows = make_source("fp8", row_dim=160, base=700)
    build_pack(source, tmp_path / "whole.pack")
    changed = rows.clone()
    changed[3] ^= 1
    twin = write_source(tmp_path / "twin", source.spec, changed, source.codec)
    object.__setattr__(twin, "model_id", source.model_id)
    newest = max(file.identity[2] for file in twin.layout.files)
    for seconds in (-1, 1):
        partial = tmp_path / "table.pack.partial"
        partial.write_bytes((tmp_path / "whole.pack").read_bytes())
        os.utime(partial, ns=(newest + seconds * 10**9,) * 2)
        report = build_pack(twin, tmp_path / "table.pack")
        assert report.outcome == "built"
        found = torch.empty_like(rows)
        read_rows(open_pack(tmp_path / "table.pack").layout, 0, len(rows), found)
        assert torch.equal(found, changed)
        (tmp_path / "table.pack").unlink()


@pytest.mark.behaviour(33)
def test_taking_up_a_killed_build_shows_progress_from_the_first_block(source, tmp_path) -> None:
    """Behaviour 33: what was left is checked for a long time; bytes done rise all the while."""
    build_pack(source, tmp_path / "whole.pack")
    whole = (tmp_path / "whole.pack").read_bytes()
    (tmp_path / "table.pack.partial").write_bytes(whole[: len(whole) // 2].ljust(len(whole), b"\0"))
    seen: list[int] = []
    build_pack(source, tmp_path / "table.pack", progress=lambda done, _: seen.append(done))
    assert seen == sorted(seen)
    assert seen[0] < source.layout.nbytes // 8
    assert seen[-1] == source.layout.nbytes


@pytest.mark.behaviour(29)
def test_every_byte_of_a_pack_matters(make_source, tmp_path) -> None:
    """Behaviour 29: whichever bit is altered, of header, rows, checksums or zeros, verify tells."""
    source, _ = make_source("nvfp4", base=200)
    path = tmp_path / "table.pack"
    build_pack(source, path)
    whole = path.read_bytes()
    offsets = {*range(64), *range(4080, 4100), *range(len(whole) - 4096, len(whole), 7)}
    offsets |= set(torch.randint(0, len(whole), (300,), generator=torch.manual_seed(0)).tolist())
    for offset in sorted(offsets):
        spoilt = bytearray(whole)
        spoilt[offset] ^= 1 << offset % 8
        path.write_bytes(spoilt)
        with pytest.raises(GramaryError, match=str(path)):
            verify_pack(path)
    path.write_bytes(whole)
    verify_pack(path, against=source)
