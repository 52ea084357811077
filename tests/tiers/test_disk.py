"""The disk tier gives the rows that the files hold, however they lie in them."""

import errno
import os
from pathlib import Path

import pytest
import torch
from abilities import READERS
from disk_stage import gather, make_rows, write_layout
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gramary.errors import ArgumentError, ClosedError, RowIdError, RowReadError, UnsupportedError
from gramary.files.layout import RowFile, RowLayout
from gramary.files.stream import read_rows
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier


@pytest.mark.parametrize("reader", READERS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_gather_equals_rows(tmp_path_factory, reader, data) -> None:
    num_rows = data.draw(st.integers(1, 300))
    row_bytes = data.draw(st.sampled_from([1, 8, 90, 160, 320, 5000]))
    splits = sorted(data.draw(st.sets(st.integers(1, max(num_rows - 1, 1)), max_size=3)))
    splits = [s for s in splits if s < num_rows]
    columns = [c for c in data.draw(st.sampled_from([[], [row_bytes // 2]])) if 0 < c < row_bytes]
    gap = data.draw(st.sampled_from([0, 7, 4096]))
    rows = make_rows(num_rows, row_bytes)
    layout = write_layout(
        tmp_path_factory.mktemp("rows"), rows, splits=tuple(splits), columns=tuple(columns), gap=gap
    )
    ids = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=200))
    row_ids = torch.tensor(ids, dtype=torch.int64)
    tier = DiskTier(layout, 0, num_rows, Settings(disk_reader=reader))
    try:
        assert torch.equal(gather(tier, row_ids), rows[row_ids])
    finally:
        tier.close()


@pytest.mark.behaviour(31)
@pytest.mark.needs("cached_reads")
def test_neighbours_in_one_block_are_read_once(tmp_path) -> None:
    rows = make_rows(2000, 160)
    tier = DiskTier(write_layout(tmp_path, rows), 0, 2000)
    row_ids = torch.arange(25).repeat(4)
    assert torch.equal(gather(tier, row_ids), rows[row_ids])
    stats = tier.stats()
    assert stats["num_rows"] == 100
    assert stats["num_distinct_rows"] == 25
    assert stats["num_blocks"] == 1
    assert stats["num_cached_reads"] == 1
    tier.close()


@pytest.mark.behaviour(32)
def test_kind_14_a_short_read_names_its_place_and_a_cut_file_is_refused(tmp_path) -> None:
    """Kind 14, behaviour 32: whatever the file's times say, and whatever it holds again."""
    rows = make_rows(1000, 160)
    layout = write_layout(tmp_path, rows)
    tier = DiskTier(layout, 0, 1000)
    path = layout.files[0].path
    whole, times = Path(path).read_bytes(), layout.files[0].identity[2]
    os.truncate(path, 500 * 160 + 10)
    os.utime(path, ns=(times, times))
    with pytest.raises(RowReadError, match=r"short read") as caught:
        gather(tier, torch.tensor([3, 500]))
    assert caught.value.file == path
    assert caught.value.offset == 500 * 160 + 10
    assert caught.value.errno == 0
    for content in (whole[: 500 * 160 + 10], whole):
        Path(path).write_bytes(content)
        os.utime(path, ns=(times, times))
        with pytest.raises(RowReadError) as caught:
            gather(tier, torch.arange(400))
        assert caught.value.errno == errno.ESTALE
    with pytest.raises(RowReadError) as caught:
        tier.check_integrity()
    assert caught.value.errno == errno.ESTALE
    tier.close()


def test_a_file_that_was_replaced_is_refused_at_open(tmp_path) -> None:
    rows = make_rows(100, 160)
    layout = write_layout(tmp_path, rows)
    other = tmp_path / "other"
    other.write_bytes(bytes(100 * 160))
    os.replace(other, layout.files[0].path)
    with pytest.raises(RowReadError) as caught:
        DiskTier(layout, 0, 100)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "nothing"])
def test_what_took_a_files_name_before_it_was_opened_is_refused(tmp_path, kind) -> None:
    """By the reader of random rows and by the one of rows in order; a pipe is not waited for."""
    rows = make_rows(100, 160)
    layout = write_layout(tmp_path, rows)
    path = Path(layout.files[0].path)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RowReadError) as caught:
        DiskTier(layout, 0, 100)
    assert caught.value.file == str(path)
    with pytest.raises(RowReadError) as caught:
        read_rows(layout, 0, 100, torch.empty_like(rows))
    assert caught.value.file == str(path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.behaviour(8)
def test_nothing_is_left_open(tmp_path) -> None:
    rows = make_rows(5000, 160)
    layout = write_layout(tmp_path, rows, splits=(10, 20))
    missing = RowLayout(
        (*layout.files, RowFile(str(tmp_path / "no"), 1, (0, 0, 0))), 160, layout.runs
    )
    gather_all = torch.arange(5000)

    def leftovers() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    first = DiskTier(layout, 0, 5000)
    gather(first, gather_all)
    first.close()
    before = leftovers()
    for _ in range(100):
        tier = DiskTier(layout, 0, 5000)
        gather(tier, gather_all)
        tier.close()
        with pytest.raises(RowReadError):
            DiskTier(missing, 0, 5000)
    assert leftovers() == before


def test_closed_tier_and_wrong_arguments_are_refused(tmp_path) -> None:
    rows = make_rows(10, 16)
    tier = DiskTier(write_layout(tmp_path, rows), 0, 10)
    with pytest.raises(ArgumentError, match="row_ids"):
        tier.gather(torch.zeros(3, dtype=torch.int32), torch.zeros(3, 16, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match="out"):
        tier.gather(torch.zeros(3, dtype=torch.int64), torch.zeros(4, 16, dtype=torch.uint8))
    with pytest.raises(RowIdError, match=r"row_ids\[1\]: expected 0 to 9, got 10"):
        gather(tier, torch.tensor([0, 10, -1]))
    with pytest.raises(ArgumentError, match="expected rows below 10, got 4 to 10"):
        DiskTier(tier.layout, 4, 7)
    with pytest.raises(UnsupportedError):
        tier.write(0, rows)
    tier.close()
    tier.close()
    with pytest.raises(ClosedError):
        gather(tier, torch.zeros(1, dtype=torch.int64))
