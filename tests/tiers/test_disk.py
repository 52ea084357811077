"""The disk tier gives the rows that the files hold, however they lie in them."""

import errno
import itertools
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gramary.errors import ArgumentError, ClosedError, RowIdError, RowReadError, UnsupportedError
from gramary.row_layout import RowFile, RowLayout, RowPart, RowRun
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier

READERS = ("io_uring", "pread", "mmap")


def write_layout(
    folder: Path, rows: torch.Tensor, *, splits: list[int], columns: list[int], gap: int = 0
) -> RowLayout:
    """Writes rows uint8 [n, row_bytes] as one file for each run and describes them.

    Args:
        splits: first rows of the runs after the first.
        columns: first bytes of the parts after the first.
        gap: bytes before every part.
    """
    num_rows, row_bytes = rows.shape
    bounds = [0, *splits, num_rows]
    edges = [0, *columns, row_bytes]
    files, runs = [], []
    for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
        path = folder / f"run{i}.bin"
        parts, data = [], b""
        for left, right in itertools.pairwise(edges):
            data += bytes(gap)
            width = right - left
            num = end - begin
            parts.append(RowPart(i, len(data), width, left, num, width * num, width))
            data += rows[begin:end, left:right].contiguous().numpy().tobytes()
        path.write_bytes(data)
        files.append(RowFile.from_path(path))
        runs.append(RowRun(begin, end - begin, tuple(parts)))
    return RowLayout(tuple(files), row_bytes, tuple(runs))


def make_rows(num_rows: int, row_bytes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows * 1000 + row_bytes)
    return torch.randint(0, 256, (num_rows, row_bytes), dtype=torch.uint8, generator=generator)


def gather(tier: DiskTier, row_ids: torch.Tensor) -> torch.Tensor:
    out = torch.full((len(row_ids), tier.row_bytes), 0xA5, dtype=torch.uint8)
    tier.gather(row_ids, out)
    return out


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
        tmp_path_factory.mktemp("rows"), rows, splits=splits, columns=columns, gap=gap
    )
    ids = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=200))
    row_ids = torch.tensor(ids, dtype=torch.int64)
    tier = DiskTier(layout, 0, num_rows, Settings(disk_reader=reader))
    try:
        assert torch.equal(gather(tier, row_ids), rows[row_ids])
    finally:
        tier.close()


@pytest.mark.behaviour(31)
def test_neighbours_in_one_block_are_read_once(tmp_path) -> None:
    rows = make_rows(2000, 160)
    tier = DiskTier(write_layout(tmp_path, rows, splits=[], columns=[]), 0, 2000)
    row_ids = torch.arange(25).repeat(4)
    assert torch.equal(gather(tier, row_ids), rows[row_ids])
    stats = tier.stats()
    assert stats["num_rows"] == 100
    assert stats["num_distinct_rows"] == 25
    assert stats["num_blocks"] == 1
    assert stats["num_cached_reads"] == 1
    tier.close()


@pytest.mark.behaviour(32)
def test_shrunk_file_fails_that_request_alone(tmp_path) -> None:
    rows = make_rows(1000, 160)
    layout = write_layout(tmp_path, rows, splits=[], columns=[])
    tier = DiskTier(layout, 0, 1000)
    whole = Path(layout.files[0].path).read_bytes()
    os.truncate(layout.files[0].path, 500 * 160 + 10)
    with pytest.raises(RowReadError, match=r"short read") as caught:
        gather(tier, torch.tensor([3, 500]))
    assert caught.value.file == layout.files[0].path
    assert caught.value.offset == 500 * 160 + 10
    assert caught.value.errno == 0
    kept = torch.arange(500)
    assert torch.equal(gather(tier, kept), rows[kept])
    with open(layout.files[0].path, "r+b") as file:
        file.write(whole)
    everything = torch.arange(1000)
    assert torch.equal(gather(tier, everything), rows)
    with pytest.raises(RowReadError) as caught:
        tier.check_integrity()
    assert caught.value.errno == errno.ESTALE
    tier.close()


def test_replaced_file_is_refused_at_open_and_harmless_after(tmp_path) -> None:
    rows = make_rows(100, 160)
    layout = write_layout(tmp_path, rows, splits=[], columns=[])
    tier = DiskTier(layout, 0, 100)
    other = tmp_path / "other"
    other.write_bytes(bytes(100 * 160))
    os.replace(other, layout.files[0].path)
    assert torch.equal(gather(tier, torch.arange(100)), rows)
    tier.close()
    with pytest.raises(RowReadError) as caught:
        DiskTier(layout, 0, 100)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.behaviour(8)
def test_nothing_is_left_open(tmp_path) -> None:
    rows = make_rows(5000, 160)
    layout = write_layout(tmp_path, rows, splits=[10, 20], columns=[])
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
    tier = DiskTier(write_layout(tmp_path, rows, splits=[], columns=[]), 0, 10)
    with pytest.raises(ArgumentError, match="row_ids"):
        tier.gather(torch.zeros(3, dtype=torch.int32), torch.zeros(3, 16, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match="out"):
        tier.gather(torch.zeros(3, dtype=torch.int64), torch.zeros(4, 16, dtype=torch.uint8))
    with pytest.raises(RowIdError, match=r"row_ids\[1\]: expected 0 to 9, got 10"):
        gather(tier, torch.tensor([0, 10, -1]))
    with pytest.raises(UnsupportedError):
        tier.write(0, rows)
    tier.close()
    tier.close()
    with pytest.raises(ClosedError):
        gather(tier, torch.zeros(1, dtype=torch.int64))
