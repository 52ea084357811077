"""Every way a batch may take: cold and warm, small and large, many threads, forks, signals."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from abilities import READERS
from disk_stage import gather, make_rows, write_layout

from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun
from gramary.files.page_cache import Span, resident_pages
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier


def drop_cache(layout: RowLayout) -> None:
    for file in layout.files:
        descriptor = os.open(file.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[RowLayout, torch.Tensor]:
    """48,000 rows of 640 bytes (30 MB) over three files, rows across block boundaries."""
    rows = make_rows(48_000, 640)
    folder = tmp_path_factory.mktemp("table")
    return write_layout(folder, rows, splits=(16_000, 33_333), gap=100), rows


@pytest.mark.behaviour(31)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 255, 257, 4095, 12_000])
@pytest.mark.parametrize("cached", ["cold", "warm", "half"])
def test_the_same_bytes_on_every_path(table, reader, num_rows, cached) -> None:
    """Behaviour 31: whatever the page cache holds, and however many rows are asked for."""
    layout, rows = table
    tier = DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))
    row_ids = torch.randint(0, len(rows), (num_rows,), generator=torch.manual_seed(num_rows))
    drop_cache(layout)
    if cached != "cold":
        warmer = DiskTier(layout, 0, len(rows), Settings(disk_reader="pread", direct_io=False))
        gather(warmer, row_ids if cached == "warm" else row_ids[: num_rows // 2 + 1])
        warmer.close()
    assert torch.equal(gather(tier, row_ids), rows[row_ids])
    assert torch.equal(gather(tier, row_ids.flip(0)), rows[row_ids.flip(0)])
    tier.close()


@pytest.mark.behaviour(31)
@pytest.mark.needs("direct_io", "droppable_cache")
@pytest.mark.parametrize("reader", READERS[:2])
def test_large_cold_batches_read_each_block_once_past_the_cache(table, reader) -> None:
    """Behaviour 31: deep, direct, neighbours joined; then warm ones answered by the cache."""
    layout, rows = table
    tier = DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))
    drop_cache(layout)
    row_ids = torch.randint(0, len(rows), (12_000,))
    gather(tier, row_ids)
    stats = tier.stats()
    assert stats["num_direct_reads"] == stats["num_backend_reads"] > 0
    assert stats["num_direct_reads"] < stats["num_blocks"], "neighbours are joined"
    sampled_bytes = 64 * 4096
    assert abs(stats["read_bytes"] - stats["num_blocks"] * 4096) <= sampled_bytes
    assert stats["num_retries"] == 0
    if reader == "io_uring":
        assert stats["max_in_flight"] >= 32
    for file in layout.files:
        Path(file.path).read_bytes()
    gather(tier, row_ids)
    assert tier.stats()["num_direct_reads"] == stats["num_direct_reads"], "now they are cached"
    tier.close()


@pytest.mark.behaviour(31)
def test_warm_small_batches_wake_no_thread(table) -> None:
    """Behaviour 31: after small batches only, the reader has started no thread."""
    layout, rows = table
    before = len(os.listdir("/proc/self/task"))
    for reader in ("auto", "pread"):
        tier = DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))
        row_ids = torch.randint(0, 100, (256,))
        gather(tier, torch.arange(100)[:2])
        for row in range(0, 100, 2):
            gather(tier, torch.tensor([row, row + 1]))
        gather(tier, row_ids)
        assert len(os.listdir("/proc/self/task")) == before
        tier.close()


@pytest.mark.parametrize("num_ids", [700, 20_000, 300_000])
@pytest.mark.parametrize("reader", READERS)
def test_runs_in_any_order_in_their_file(tmp_path, reader, num_ids) -> None:
    """Later rows before earlier ones, with rows that repeat, and more than one piece's worth."""
    num_rows, width, per_run = 30_000, 160, 7500
    rows = make_rows(num_rows, width)
    path = tmp_path / "rows.bin"
    firsts = range(0, num_rows, per_run)
    path.write_bytes(
        b"".join(rows[first : first + per_run].numpy().tobytes() for first in reversed(firsts))
    )
    runs = []
    for i, first in enumerate(firsts):
        offset = (len(firsts) - 1 - i) * per_run * width
        part = RowPart(0, offset, width, 0, per_run, per_run * width, width)
        runs.append(RowRun(first, per_run, (part,)))
    layout = RowLayout((RowFile.from_path(path),), width, tuple(runs))
    tier = DiskTier(layout, 0, num_rows, Settings(disk_reader=reader))
    row_ids = torch.randint(0, num_rows, (num_ids,))
    for _ in range(2):
        drop_cache(layout)
        found = gather(tier, row_ids)
        assert torch.equal(found, rows[row_ids])
    tier.close()


@pytest.mark.behaviour(27)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("row_bytes", [90, 160])
def test_rows_beyond_2_31_and_2_32(tmp_path, reader, row_bytes) -> None:
    """Behaviour 27: a sparse file of 5 GiB with a few rows that tell their number."""
    num_rows = 5 * 2**30 // row_bytes
    marked = {0, 1, num_rows - 1}
    for boundary in (2**31, 2**32):
        marked |= {boundary // row_bytes + d for d in (-1, 0, 1)}
    marked |= {2**24, num_rows // 2}
    path = tmp_path / "sparse.bin"
    with open(path, "wb") as file:
        file.truncate(num_rows * row_bytes)
        for row in marked:
            file.seek(row * row_bytes)
            file.write(row.to_bytes(8, "little").ljust(row_bytes, b"\x5a"))
    part = RowPart(0, 0, row_bytes, 0, num_rows, num_rows * row_bytes, row_bytes)
    layout = RowLayout((RowFile.from_path(path),), row_bytes, (RowRun(0, num_rows, (part,)),))
    tier = DiskTier(layout, 0, num_rows, Settings(disk_reader=reader))
    row_ids = torch.tensor(sorted(marked))
    for filler in (0, 6000):  # small and large batches
        unmarked = torch.randint(2, num_rows - 2, (filler,))
        ids = torch.cat([row_ids, unmarked])
        found = gather(tier, ids)
        for row, data in zip(ids.tolist(), found.numpy(), strict=True):
            data = data.tobytes()
            if row in marked:
                assert data == row.to_bytes(8, "little").ljust(row_bytes, b"\x5a"), row
            else:
                assert not any(data), row
    tier.close()


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("num_rows", [10, 12_000])
def test_a_file_that_shrinks_fails_small_and_large_requests_alone(
    tmp_path, reader, num_rows
) -> None:
    """Behaviour 32: file and offset in the error; rows of other files are still served."""
    rows = make_rows(20_000, 640)
    layout = write_layout(tmp_path, rows, splits=(10_000,))
    tier = DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))
    path = layout.files[1].path
    os.truncate(path, 640 * 5000 + 3)
    drop_cache(layout)
    row_ids = torch.randint(0, 14_000, (num_rows,))
    row_ids[num_rows // 2] = 19_999
    with pytest.raises(Exception, match="short read") as caught:
        gather(tier, row_ids)
    assert (caught.value.file, caught.value.errno) == (path, 0)
    assert 640 * 5000 + 3 <= caught.value.offset <= 640 * 10_000
    kept = torch.randint(0, 10_000, (num_rows,))
    assert torch.equal(gather(tier, kept), rows[kept])
    assert tier.stats()["num_failures"] == 1
    tier.close()


@pytest.mark.parametrize("reader", READERS)
def test_many_threads_at_once(table, reader) -> None:
    layout, rows = table
    tier = DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))
    drop_cache(layout)
    wrong: list[object] = []

    def read(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for num_rows in (16, 6000, 300, 9000):
            row_ids = torch.randint(0, len(rows), (num_rows,), generator=generator)
            try:
                if not torch.equal(gather(tier, row_ids), rows[row_ids]):
                    wrong.append((seed, num_rows))
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    tier.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("reader", READERS)
def test_a_forked_child_reads_and_closes(table, reader) -> None:
    """The parent's rings and threads are not the child's; its rows come all the same."""
    layout, rows = table
    tier = DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))
    row_ids = torch.randint(0, len(rows), (9000,), generator=torch.manual_seed(5))
    drop_cache(layout)
    expected = rows[row_ids]
    assert torch.equal(gather(tier, row_ids), expected)
    # Reads into plain memory: torch's own threads do not survive a fork.
    small, large = torch.empty(7, 640, dtype=torch.uint8), torch.empty(9000, 640, dtype=torch.uint8)
    few = row_ids[:7].clone()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            tier.gather(few, small)
            tier.gather(row_ids, large)
            same = small.numpy().tobytes() == expected[:7].numpy().tobytes()
            status = 0 if same and large.numpy().tobytes() == expected.numpy().tobytes() else 2
            tier.close()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(gather(tier, row_ids), expected)
    tier.close()


@pytest.mark.parametrize("reader", READERS[:2])
def test_signals_interrupt_nothing(table, reader) -> None:
    """A storm of signals during cold batches: EINTR is never an error and never a wrong row."""
    layout, rows = table
    tier = DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))
    num_signals = 0

    def count(*_: object) -> None:
        nonlocal num_signals
        num_signals += 1

    previous = signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for num_rows in (50, 3000, 12_000):
            drop_cache(layout)
            row_ids = torch.randint(0, len(rows), (num_rows,))
            assert torch.equal(gather(tier, row_ids), rows[row_ids])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert num_signals > 0
    tier.close()


def resident_bytes(kind: str) -> int:
    """Resident memory of this process: "RssFile" or "RssAnon"."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(f"{kind}:"))
    return int(line.split()[1]) * 1024


def file_resident_bytes() -> int:
    return resident_bytes("RssFile")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> RowLayout:
    """Two million rows of 160 bytes (320 MB) in one file."""
    num_rows = 2_000_000
    path = tmp_path_factory.mktemp("large") / "rows.bin"
    with open(path, "wb") as file:
        for _ in range(32):
            file.write(os.urandom(1) * (num_rows // 32 * 160))
    part = RowPart(0, 0, 160, 0, num_rows, num_rows * 160, 160)
    return RowLayout((RowFile.from_path(path),), 160, (RowRun(0, num_rows, (part,)),))


@pytest.mark.behaviour(15)
def test_mapped_rows_stay_under_their_budget_over_a_million_rows(large) -> None:
    """Behaviour 15: resident file pages never pass the budget by more than the work under way."""
    budget_mib = 32
    settings = Settings(disk_reader="mmap", mmap_budget_mib=budget_mib)
    tier = DiskTier(large, 0, large.num_rows, settings)
    before = file_resident_bytes()
    most = 0
    out = torch.empty(10_000, 160, dtype=torch.uint8)
    for _ in range(100):
        tier.gather(torch.randint(0, large.num_rows, (10_000,)), out)
        most = max(most, file_resident_bytes() - before)
    assert most <= (budget_mib + 16) << 20
    tier.close()
    assert file_resident_bytes() - before < 1 << 20


@pytest.mark.behaviour(15)
@pytest.mark.parametrize("reader", READERS[:2])
def test_rows_that_are_read_take_no_memory_but_the_page_cache(large, reader) -> None:
    """Behaviour 15: over a million rows the process itself grows by its buffers, and no more."""
    with open(large.files[0].path, "rb") as file:
        while file.read(1 << 20):
            pass
    tier = DiskTier(large, 0, large.num_rows, Settings(disk_reader=reader))
    out = torch.empty(10_000, 160, dtype=torch.uint8)
    row_ids = torch.randint(0, large.num_rows, (100, 10_000))
    gather(tier, row_ids[0])
    before = {kind: resident_bytes(kind) for kind in ("RssAnon", "RssFile")}
    for ids in row_ids:
        tier.gather(ids, out)
        for kind, num_bytes in before.items():
            assert resident_bytes(kind) - num_bytes < 16 << 20, kind
    drop_cache(large)
    with open(large.files[0].path, "rb") as file:
        resident = resident_pages(Span(file.fileno(), 0, large.files[0].size))
    assert resident.mean() < 0.1, "the kernel may take the pages back while the table is open"
    tier.close()
