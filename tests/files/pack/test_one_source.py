"""A pack holds the rows of one source, in one state of its files, whatever becomes of them."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gramary.errors import ChecksumError, PackError, RowReadError
from gramary.files.layout import RowFile, TableSource
from gramary.files.pack import build_pack, open_pack, recoding, verify_pack
from gramary.files.pack.partial_file import PartialFile
from gramary.files.stream import read_rows
from gramary.native.disk import DiskReader
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier

ROW = 1234


class Killed(BaseException):
    """Ends a build as a signal does: nothing of it runs on but what closes files."""


@pytest.fixture
def source(make_source, monkeypatch) -> TableSource:
    """A table of several files that is packed in many chunks."""
    monkeypatch.setattr(recoding, "CHUNK_BYTES", 1 << 16)
    return make_source("fp8", row_dim=160, base=2000)[0]


def describe_again(source: TableSource) -> TableSource:
    """The source as it is opened now; its identity has not looked at the row that was changed."""
    files = tuple(RowFile.from_path(file.path) for file in source.layout.files)
    return replace(source, layout=replace(source.layout, files=files))


def file_of_row(source: TableSource) -> Path:
    (run,) = source.layout.runs_between(ROW, ROW + 1)
    return Path(source.layout.files[run.parts[0].file].path)


def write_row(source: TableSource, path: Path | None = None) -> None:
    """New weights for one row, written in place."""
    (run,) = source.layout.runs_between(ROW, ROW + 1)
    with open(path or file_of_row(source), "r+b") as file:
        file.seek(run.parts[0].byte_of(ROW - run.first_row))
        file.write(bytes([0x40]) * 160)


def write_row_and_time_back(source: TableSource) -> None:
    times = os.stat(file_of_row(source))
    write_row(source)
    os.utime(file_of_row(source), ns=(times.st_atime_ns, times.st_mtime_ns))


def replace_by_rename(source: TableSource) -> None:
    """As `rsync --times` does: another file of the same size and modification time."""
    path = file_of_row(source)
    other = path.with_suffix(".new")
    shutil.copy2(path, other)
    times = os.stat(path)
    write_row(source, other)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(other, path)


def point_link_elsewhere(source: TableSource) -> None:
    """As a hub cache does; the file that the link led to is not touched."""
    path = file_of_row(source)
    other = path.with_suffix(".blob")
    shutil.copy2(path, other)
    write_row(source, other)
    path.unlink()
    path.symlink_to(other)


CHANGES = (write_row, write_row_and_time_back, replace_by_rename, point_link_elsewhere)


def kill_at(fraction: float) -> Callable[[int, int], None]:
    def progress(done_bytes: int, total_bytes: int) -> None:
        if done_bytes >= fraction * total_bytes:
            raise Killed

    return progress


def build_and_kill(source: TableSource, path: Path, codec: str, fraction: float) -> None:
    with pytest.raises(Killed):
        build_pack(source, path, codec=codec, progress=kill_at(fraction))


def rows_of(source: TableSource) -> torch.Tensor:
    layout = source.layout
    out = torch.empty(layout.num_rows, layout.row_bytes, dtype=torch.uint8)
    read_rows(layout, 0, layout.num_rows, out)
    return out


@pytest.mark.behaviour(29)
@pytest.mark.parametrize("codec", ["keep", "bf16"])
@pytest.mark.parametrize("change", CHANGES)
def test_kind_21_a_build_goes_on_only_from_files_in_the_same_state(
    source, tmp_path, change, codec
) -> None:
    """Kind 21: killed, the source changed in a row that no identity samples, killed, gone on with.

    The rows that the first run left are never those of the pack.
    """
    path = tmp_path / "table.pack"
    build_and_kill(source, path, codec, 1.0)
    change(source)
    now = describe_again(source)
    assert now.model_id == source.model_id
    build_and_kill(now, path, codec, 0.01)
    report = build_pack(now, path, codec=codec)
    assert report.outcome in ("built", "resumed")
    verify_pack(path)
    verify_pack(path, against=now)
    if codec == "keep":
        assert torch.equal(rows_of(open_pack(path)), rows_of(now))
        assert rows_of(open_pack(path))[ROW].eq(0x40).all()


@pytest.mark.behaviour(29)
def test_kind_21_a_build_of_an_unchanged_source_still_goes_on(source, tmp_path) -> None:
    """Kind 21: the state is the same as long as nobody touched the files."""
    path = tmp_path / "table.pack"
    build_and_kill(source, path, "keep", 0.5)
    report = build_pack(describe_again(source), path)
    assert report.outcome == "resumed"
    assert report.num_rows_written < source.spec.num_rows
    assert torch.equal(rows_of(open_pack(path)), rows_of(source))
    assert build_pack(describe_again(source), path).outcome == "reused"


@pytest.mark.behaviour(29, 32)
@pytest.mark.parametrize("at", [0.1, 0.8])
@pytest.mark.parametrize("codec", ["keep", "nvfp4"])
@pytest.mark.parametrize("change", CHANGES)
def test_kind_21_a_source_that_changes_during_a_build_fails_it(
    source, tmp_path, change, codec, at
) -> None:
    """Kind 21: rewritten, replaced by rename, or behind a link; before or after its rows came."""
    path, changed = tmp_path / "table.pack", []

    def spoil(done_bytes: int, total_bytes: int) -> None:
        if not changed and done_bytes >= at * total_bytes:
            changed.append(change(source))

    with pytest.raises(RowReadError) as caught:
        build_pack(source, path, codec=codec, progress=spoil)
    assert (caught.value.file, caught.value.errno) == (str(file_of_row(source)), errno.ESTALE)
    assert list(tmp_path.glob("table.pack*")) == []


@pytest.mark.behaviour(29)
def test_kind_21_blocks_of_another_state_of_the_source_do_not_verify(source, tmp_path) -> None:
    """Kind 21: whoever put them there, and however well they check in their own pack."""
    old, new = tmp_path / "old.pack", tmp_path / "new.pack"
    build_pack(source, old)
    write_row_and_time_back(source)
    build_pack(describe_again(source), new)
    left, right = old.read_bytes(), new.read_bytes()
    assert len(left) == len(right)
    half = len(right) // 2 // 4096 * 4096
    mixed = tmp_path / "mixed.pack"
    mixed.write_bytes(right[:half] + left[half:])
    with pytest.raises(ChecksumError, match=f"block at byte {half} .*was altered"):
        verify_pack(mixed)
    # Nor are they read, or taken up by a build.
    pack = open_pack(mixed)
    reader = DiskReader(pack.layout)
    last = torch.tensor([pack.spec.num_rows - 1])
    with pytest.raises(ChecksumError):
        reader.read(last, torch.empty(1, 160, dtype=torch.uint8))
    reader.close()
    mixed.rename(f"{tmp_path / 'next.pack'}.partial")
    report = build_pack(describe_again(source), tmp_path / "next.pack")
    assert report.outcome == "resumed"
    assert (tmp_path / "next.pack").read_bytes() == right


def test_kind_21_starting_again_empties_what_was_left(tmp_path) -> None:
    """Kind 21: no block of an older build lies in the file when a new one begins."""
    path = tmp_path / "table.pack"
    Path(f"{path}.partial").write_bytes(b"GRAMPART" + b"old" * 20_000)
    with PartialFile(str(path)) as file:
        file.reserve(40_000)
        assert os.pread(file.descriptor, 1 << 20, 0) == bytes(40_000)


def test_kind_21_a_partial_file_that_was_replaced_is_not_published(source, tmp_path) -> None:
    """Kind 21: the name would go to whatever another process is writing there."""
    path, partial = tmp_path / "table.pack", tmp_path / "table.pack.partial"

    def take_the_name(done_bytes: int, total_bytes: int) -> None:
        if done_bytes == total_bytes:
            partial.unlink()
            partial.write_bytes(b"GRAMPART of another")

    with pytest.raises(PackError, match="was removed or replaced while the pack was built"):
        build_pack(source, path, progress=take_the_name)
    assert not path.exists()
    assert partial.read_bytes() == b"GRAMPART of another"


@pytest.mark.behaviour(29)
@pytest.mark.parametrize("change", CHANGES)
def test_kind_21_a_pack_is_compared_with_files_that_are_in_another_state(
    source, tmp_path, change
) -> None:
    """Kind 21: before it is reused; times that were put back or copied hide nothing."""
    path = tmp_path / "table.pack"
    build_pack(source, path)
    os.chmod(file_of_row(source), 0o600)
    seen: list[int] = []
    report = build_pack(describe_again(source), path, progress=lambda done, _: seen.append(done))
    assert (report.outcome, bool(seen)) == ("reused", True)
    change(source)
    with pytest.raises(PackError, match=rf"row {ROW} .*remove the pack and build it again"):
        build_pack(describe_again(source), path)


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("against", [False, True])
def test_kind_14_a_pack_that_is_changed_while_it_is_checked_is_not_right(
    source, tmp_path, against
) -> None:
    """Kinds 14 and 21: what was checked is not what is there now."""
    path = tmp_path / "table.pack"
    build_pack(source, path)

    def spoil(done_bytes: int, total_bytes: int) -> None:
        if done_bytes == total_bytes:
            os.pwrite(descriptor, os.pread(descriptor, 8, 0), 0)

    descriptor = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(RowReadError, match=r"changed (since|while)"):
            verify_pack(path, against=source if against else None, progress=spoil)
    finally:
        os.close(descriptor)
    verify_pack(path, against=source)


@pytest.fixture
def served(source, tmp_path) -> Iterator[tuple[Path, DiskTier]]:
    path = tmp_path / "table.pack"
    build_pack(source, path)
    pack = open_pack(path)
    tier = DiskTier(pack.layout, 0, pack.spec.num_rows, Settings())
    yield path, tier
    tier.close()


def test_kind_14_a_served_pack_proves_its_blocks_and_no_other_file_takes_its_name(
    served, source, tmp_path
) -> None:
    """Kind 14: what its times say does not matter, whose blocks they are does."""
    path, tier = served
    row_ids = torch.arange(0, source.spec.num_rows, 7)
    out, expected = torch.empty(len(row_ids), 160, dtype=torch.uint8), rows_of(source)[row_ids]
    path.touch()
    path.chmod(0o600)
    for _ in range(2):
        tier.gather(row_ids, out)
        assert torch.equal(out, expected)
    # A pack of the same table in another state, copied over it: every block is another one's.
    write_row_and_time_back(source)
    build_pack(describe_again(source), tmp_path / "other.pack")
    aside = path.with_suffix(".aside")
    shutil.copy2(path, aside)
    with open(path, "r+b") as file:
        file.write((tmp_path / "other.pack").read_bytes())
    with pytest.raises(ChecksumError):
        tier.gather(row_ids, out)
    with open(path, "r+b") as file:
        file.write(aside.read_bytes())
    tier.gather(row_ids, out)
    assert torch.equal(out, expected)
    os.replace(aside, path)
    with pytest.raises(RowReadError) as caught:
        tier.gather(row_ids, out)
    assert caught.value.errno == errno.ESTALE
