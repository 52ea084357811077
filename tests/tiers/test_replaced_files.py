"""Files that become other files while they are open fail the requests that need them, no others."""

import errno
import mmap
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from abilities import READERS, with_reader
from disk_stage import gather, make_rows, write_layout

from gramary.errors import RowReadError
from gramary.files.layout import RowLayout
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier

# A little more than the time between two looks at the files' names.
LOOK_S = 1.1
FEW, MANY = torch.tensor([5, 6000]), torch.randperm(12_000, generator=torch.manual_seed(1))


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
    time.sleep(LOOK_S)


def write_one_row(path: Path) -> None:
    """A single byte of the first row."""
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, b"\0", 3)
    os.close(descriptor)


def write_through_a_mapping(path: Path) -> None:
    """A store moves the times when the page is written to, and is noted when the file is closed."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[3] ^= 1
        mapping.flush()


def truncate_and_grow_again(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, 100)
    os.truncate(path, size)


def cut(path: Path) -> None:
    os.truncate(path, 1000)


WRITES = (
    rewrite_in_place,
    write_one_row,
    write_through_a_mapping,
    truncate_and_grow_again,
    cut,
)


def open_two_files(folder: Path, reader: str = "auto") -> tuple[RowLayout, torch.Tensor, DiskTier]:
    rows = make_rows(12_000, 640)
    layout = write_layout(folder, rows, splits=(6000,))
    return layout, rows, DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))


def drop_cache(layout: RowLayout) -> None:
    for file in layout.files:
        descriptor = os.open(file.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def require_refusal(tier: DiskTier, path: Path, *batches: torch.Tensor) -> None:
    for row_ids in batches:
        with pytest.raises(RowReadError) as caught:
            gather(tier, row_ids)
        assert caught.value.file == str(path)
        # Where it was cut, a read may be short before its change time is asked for.
        assert caught.value.errno in (errno.ESTALE, 0)


CHANGES = [
    *(
        with_reader(reader, change)
        for change in (replace_by_rename, rewrite_in_place)
        for reader in ("io_uring", "pread", "mmap")
    ),
    with_reader("pread", point_link_elsewhere),
    with_reader("io_uring", rewrite_longer),
    with_reader("io_uring", rewrite_shorter),
    with_reader("mmap", append),
]


@pytest.mark.behaviour(32)
@pytest.mark.parametrize(("change", "reader"), CHANGES)
def test_kind_14_requests_for_its_rows_fail_and_others_do_not(
    tmp_path, change: Callable[[Path], None], reader: str
) -> None:
    """Kind 14, behaviour 32: at once, for that request alone, small or large."""
    layout, rows, tier = open_two_files(tmp_path, reader)
    path = Path(layout.files[1].path)
    change(path)
    require_refusal(tier, path, FEW, MANY)
    for others in (torch.tensor([5, 5999]), MANY[MANY < 6000]):
        assert torch.equal(gather(tier, others), rows[others])
    with pytest.raises(RowReadError):
        tier.check_integrity()
    tier.close()


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("write", WRITES)
def test_kind_14_a_modification_time_that_was_put_back_hides_no_write(
    tmp_path, write: Callable[[Path], None], reader: str
) -> None:
    """Kind 14: `touch -r` after a write, read small, large, cached and past the page cache."""
    layout, rows, tier = open_two_files(tmp_path, reader)
    path = Path(layout.files[0].path)
    assert torch.equal(gather(tier, MANY), rows[MANY])
    before = os.stat(path)
    write(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns
    require_refusal(tier, path, FEW, MANY)
    drop_cache(layout)
    require_refusal(tier, path, MANY, FEW)
    with pytest.raises(RowReadError):
        tier.check_integrity()
    # Nor is it refused for one look only.
    time.sleep(0.01)
    require_refusal(tier, path, FEW)
    tier.close()


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("row_ids", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("change", [write_one_row, replace_by_rename])
def test_kind_14_a_batch_that_was_read_across_a_change_fails(
    tmp_path, change, row_ids, reader
) -> None:
    """Kind 14: the look comes after the reads; a batch that began before the change fails too."""
    layout, _, tier = open_two_files(tmp_path, reader)
    path = Path(layout.files[0].path)
    # Batch, delay in us, no error.
    tier._reader.set_script(torch.tensor([[0, 150_000, -1, 0]]))
    times = os.stat(path)
    outcome: list[BaseException | torch.Tensor] = []

    def read() -> None:
        try:
            outcome.append(gather(tier, row_ids))
        except RowReadError as error:
            outcome.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.05)
    change(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    thread.join()
    (error,) = outcome
    assert isinstance(error, RowReadError)
    assert (error.file, error.errno) == (str(path), errno.ESTALE)
    tier.close()


def change_mode(path: Path) -> None:
    path.chmod(0o640)


def add_a_link(path: Path) -> None:
    os.link(path, path.with_suffix(".link"))
    os.unlink(path.with_suffix(".link"))


def move_away_and_back(path: Path) -> None:
    os.rename(path, path.with_suffix(".aside"))
    os.rename(path.with_suffix(".aside"), path)


def read_it(path: Path) -> None:
    path.read_bytes()


@pytest.mark.parametrize("change", [change_mode, add_a_link, move_away_and_back, read_it])
@pytest.mark.parametrize("reader", READERS)
def test_kind_14_attributes_alone_stop_nothing(tmp_path, change, reader) -> None:
    """Kind 14: the change time moves for them too, and the kernel's notes say that it was all."""
    layout, rows, tier = open_two_files(tmp_path, reader)
    path = Path(layout.files[0].path)
    for _ in range(2):
        change(path)
        for row_ids in (FEW, MANY):
            assert torch.equal(gather(tier, row_ids), rows[row_ids])
        tier.check_integrity()
    # And they hide no write that comes with them.
    times = os.stat(path)
    write_one_row(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    change(path)
    require_refusal(tier, path, FEW, MANY)
    tier.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_kind_14_where_no_notes_are_to_be_had_attributes_count_as_a_write(tmp_path) -> None:
    """Kind 14: a forked child would take its parent's notes, and refuses instead."""
    layout, rows, tier = open_two_files(tmp_path, "pread")
    path, out, few = Path(layout.files[0].path), torch.empty(2, 640, dtype=torch.uint8), FEW.clone()
    tier.gather(few, out)
    path.chmod(0o640)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            tier.gather(few, out)
        except RowReadError as error:
            status = 0 if error.errno == errno.ESTALE else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(gather(tier, FEW), rows[FEW])
    tier.close()


def test_kind_14_the_old_file_under_its_name_again_is_served_again(tmp_path) -> None:
    """Kind 14: what a rename brought, a rename may take back."""
    layout, rows, tier = open_two_files(tmp_path)
    path, aside = Path(layout.files[0].path), tmp_path / "aside"
    os.rename(path, aside)
    path.write_bytes(bytes(10))
    with pytest.raises(RowReadError):
        gather(tier, torch.tensor([1]))
    os.replace(aside, path)
    assert torch.equal(gather(tier, torch.tensor([1])), rows[[1]])
    tier.close()


def test_a_file_that_lost_its_name_is_served_on(tmp_path) -> None:
    """Nobody else's rows can come from it: the open file is what it was."""
    layout, rows, tier = open_two_files(tmp_path)
    os.unlink(layout.files[0].path)
    row_ids = torch.tensor([1, 7000])
    assert torch.equal(gather(tier, row_ids), rows[row_ids])
    time.sleep(LOOK_S)
    assert torch.equal(gather(tier, row_ids), rows[row_ids])
    tier.close()


def test_kind_14_threads_that_read_while_a_file_is_replaced_agree(tmp_path) -> None:
    """Kind 14: every thread gets the old rows or the error, and the error from then on."""
    layout, rows, tier = open_two_files(tmp_path)
    row_ids = torch.tensor([3, 8000])
    is_replaced, wrong, refused = threading.Event(), [], []

    def read_until_refused() -> None:
        while True:
            was_replaced = is_replaced.is_set()
            try:
                if not torch.equal(gather(tier, row_ids), rows[row_ids]) or was_replaced:
                    wrong.append(was_replaced)
                    return
            except RowReadError:
                refused.append(True)
                return

    threads = [threading.Thread(target=read_until_refused) for _ in range(4)]
    for thread in threads:
        thread.start()
    replace_by_rename(Path(layout.files[0].path))
    is_replaced.set()
    for thread in threads:
        thread.join()
    assert (wrong, refused) == ([], [True] * 4)
    tier.close()
