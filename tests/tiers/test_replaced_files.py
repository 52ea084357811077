"""Files that become other files while they are open fail the requests that need them, no others."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiers.disk_stage import gather, make_rows, write_layout

from gramary.errors import RowReadError
from gramary.row_layout import RowLayout
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier

# A little more than the time between two looks.
LOOK_S = 1.1
READERS = ("io_uring", "pread", "mmap")


def replace_by_rename(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(bytes(path.stat().st_size))
    os.replace(other, path)


def rewrite_in_place(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))


def rewrite_longer(path: Path) -> None:
    """As `cp` does with another model's file."""
    path.write_bytes(bytes(path.stat().st_size + 4096))


def rewrite_shorter(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size - 4096))


def append(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


def point_link_elsewhere(path: Path) -> None:
    """As a hub cache does, whose snapshot is a folder of links."""
    other = path.with_suffix(".blob")
    shutil.copyfile(path, other)
    path.unlink()
    path.symlink_to(other)


def open_two_files(folder: Path, reader: str = "auto") -> tuple[RowLayout, torch.Tensor, DiskTier]:
    rows = make_rows(12_000, 640)
    layout = write_layout(folder, rows, splits=(6000,))
    return layout, rows, DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))


# By every reader, and in every way: each takes a second.
CHANGES = [
    *((change, reader) for change in (replace_by_rename, rewrite_in_place) for reader in READERS),
    (point_link_elsewhere, "pread"),
    (rewrite_longer, "io_uring"),
    (rewrite_shorter, "io_uring"),
    (append, "mmap"),
]


@pytest.mark.behaviour(32)
@pytest.mark.parametrize(("change", "reader"), CHANGES)
def test_requests_for_its_rows_fail_and_others_do_not(
    tmp_path, change: Callable[[Path], None], reader: str
) -> None:
    """Behaviour 32: an error with file and errno for that request alone, small or large."""
    layout, rows, tier = open_two_files(tmp_path, reader)
    path = Path(layout.files[1].path)
    change(path)
    time.sleep(LOOK_S)
    for row_ids in (torch.tensor([5, 6000]), torch.randperm(12_000)):
        with pytest.raises(RowReadError, match="replaced or written to") as caught:
            gather(tier, row_ids)
        assert (caught.value.file, caught.value.errno) == (str(path), errno.ESTALE)
    for others in (torch.tensor([5, 5999]), torch.randperm(6000)):
        assert torch.equal(gather(tier, others), rows[others])
    with pytest.raises(RowReadError):
        tier.check_integrity()
    tier.close()


def test_the_old_file_under_its_name_again_is_served_again(tmp_path) -> None:
    layout, rows, tier = open_two_files(tmp_path)
    path, aside = Path(layout.files[0].path), tmp_path / "aside"
    os.rename(path, aside)
    path.write_bytes(bytes(10))
    time.sleep(LOOK_S)
    with pytest.raises(RowReadError):
        gather(tier, torch.tensor([1]))
    os.replace(aside, path)
    time.sleep(LOOK_S)
    assert torch.equal(gather(tier, torch.tensor([1])), rows[[1]])
    tier.close()


def test_a_file_that_lost_its_name_is_served_on(tmp_path) -> None:
    """Nobody else's rows can come from it: the open file is what it was."""
    layout, rows, tier = open_two_files(tmp_path)
    os.unlink(layout.files[0].path)
    time.sleep(LOOK_S)
    row_ids = torch.tensor([1, 7000])
    assert torch.equal(gather(tier, row_ids), rows[row_ids])
    tier.close()


def test_threads_that_look_at_once_agree(tmp_path) -> None:
    """Whoever looks, within a second and a bit every thread is refused and nobody is before."""
    layout, rows, tier = open_two_files(tmp_path)
    row_ids = torch.tensor([3, 8000])
    refused: list[bool] = []

    def read_until_refused() -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                assert torch.equal(gather(tier, row_ids), rows[row_ids])
            except RowReadError:
                refused.append(True)
                return

    threads = [threading.Thread(target=read_until_refused) for _ in range(4)]
    for thread in threads:
        thread.start()
    replace_by_rename(Path(layout.files[0].path))
    for thread in threads:
        thread.join()
    assert refused == [True] * 4
    tier.close()
