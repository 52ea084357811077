"""One copy of the host rows for many processes: complete or not there, private, and pruned."""

import contextlib
import dataclasses
import multiprocessing
import os
import resource
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch
from abilities import ask_for
from table_stage import encoded_table, small_spec, write_table_folder

from gramary import Table
from gramary.cli import main
from gramary.errors import ArgumentError, CapacityError, PlacementError, RowReadError
from gramary.files.source import open_source
from gramary.model.codecs import Codec
from gramary.settings import Settings
from gramary.tiers.share import SharedMapping, ShareKey
from gramary.tiers.share_folder import ShareFolder

SPEC = small_spec()

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


@pytest.fixture
def root() -> Iterator[str]:
    """A folder in a tmpfs, removed at the end."""
    ask_for("shared_memory")
    with tempfile.TemporaryDirectory(prefix="gramary-test-", dir="/dev/shm") as folder:
        yield folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A model folder and its encoded rows."""
    encoded, codec = encoded_table(SPEC, "fp8")
    path = write_table_folder(tmp_path_factory.mktemp("model"), SPEC, encoded, codec)
    return path, encoded


def open_shared(model: tuple[Path, torch.Tensor], root: str, **options: object) -> Table:
    options.setdefault("share", "rows")
    return Table.open(model[0], settings=Settings(share_folder=root), **options)


def assert_rows(table: Table, encoded: torch.Tensor) -> None:
    row_ids = torch.arange(len(encoded))
    assert torch.equal(table.lookup(row_ids, dtype=torch.uint8), encoded)


def files_of(root: str) -> list[str]:
    with ShareFolder(root) as folder:
        return [file.file_name for file in folder.files()]


def test_kind_14_rows_of_files_that_were_changed_since_are_others(tmp_path, root) -> None:
    """Kind 14: one row that the table's identity does not look at, and the old modification time;
    who opens later gets the new row."""
    spec = small_spec()
    encoded, codec = encoded_table(spec, "fp8")
    model = write_table_folder(tmp_path, spec, encoded, codec)
    with open_shared((model, encoded), root) as first:
        model_id = open_source(model).model_id
        times = {file: file.stat().st_mtime_ns for file in model.iterdir()}
        changed = encoded.clone()
        for row in range(len(changed)):
            changed[row, 0] ^= 1
            write_table_folder(tmp_path, spec, changed, codec)
            if open_source(model).model_id == model_id:
                break
            changed[row, 0] ^= 1
        assert not torch.equal(changed, encoded)
        for file, time_ns in times.items():
            os.utime(file, ns=(time_ns, time_ns))
        with open_shared((model, changed), root) as second:
            assert_rows(second, changed)
            assert_rows(first, encoded)
            assert len(files_of(root)) == 2


def test_the_second_table_maps_what_the_first_filled(model, root) -> None:
    with open_shared(model, root) as first, open_shared(model, root) as second:
        assert_rows(first, model[1])
        assert_rows(second, model[1])
        tiers = [table.tiers[0] for table in (first, second)]
        inodes = [os.fstat(tier.descriptor).st_ino for tier in tiers]
        assert inodes[0] == inodes[1]
        assert [tier.is_filled for tier in tiers] == [False, True]
        path = Path(tiers[0].stats()["shared"])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(tiers[1].descriptor, b"x", 0)
    # It stays for the next one, and serves with the model's files gone from memory.
    assert len(files_of(root)) == 1
    with open_shared(model, root, placement="host=all") as third:
        assert third.tiers[0].is_filled
        assert_rows(third, model[1])


def test_other_rows_are_other_files(model, root) -> None:
    with (
        open_shared(model, root) as whole,
        open_shared(model, root, share="other") as other,
        open_shared(model, root, placement="host=10000,disk") as part,
        open_shared(model, root, shard=(1, 2)) as half,
    ):
        assert len(files_of(root)) == 4
        for table in (whole, other, part):
            assert_rows(table, model[1])
        first_row = half.tiers[0].first_row
        row_ids = torch.arange(first_row, len(model[1]))
        assert torch.equal(half.lookup(row_ids, dtype=torch.uint8), model[1][row_ids])


@dataclasses.dataclass(frozen=True)
class Cues:
    """What a filling process and its test tell each other."""

    is_filling: Event
    may_go_on: Event
    may_close: Event


def fill_and_wait(path: Path, root: str, cues: Cues) -> None:
    from gramary.storage import row_store

    stream = row_store.read_in_order

    def slowly(*arguments, **options):
        for chunk in stream(*arguments, **options):
            cues.is_filling.set()
            cues.may_go_on.wait(60)
            yield chunk

    row_store.read_in_order = slowly
    with Table.open(path, share="rows", settings=Settings(share_folder=root)):
        cues.may_close.wait(60)


@contextlib.contextmanager
def filling(path: Path, root: str) -> Iterator[tuple[BaseProcess, Cues]]:
    """A process that has begun to fill the rows, and that serves from them until the end."""
    context = multiprocessing.get_context("fork")
    cues = Cues(context.Event(), context.Event(), context.Event())
    filler = context.Process(target=fill_and_wait, args=(path, root, cues))
    filler.start()
    assert cues.is_filling.wait(60)
    try:
        yield filler, cues
    finally:
        # An event never ends to be set for a process that was killed waiting for it.
        if filler.is_alive():
            cues.may_go_on.set()
            cues.may_close.set()
        filler.join(60)


def start_waiting(model, root: str, num: int) -> tuple[list[threading.Thread], list[Table]]:
    """Threads that open the table, and the tables that they got."""
    opened: list[Table] = []
    waiters = [
        threading.Thread(target=lambda: opened.append(open_shared(model, root)), daemon=True)
        for _ in range(num)
    ]
    for waiter in waiters:
        waiter.start()
    waiters[0].join(0.3)
    return waiters, opened


@pytest.mark.parametrize("num_waiters", [1, 4])
def test_others_wait_for_the_filler_and_see_only_complete_rows(model, root, num_waiters) -> None:
    """They go on as soon as the rows are complete, while the filler serves from them."""
    with filling(model[0], root) as (filler, cues):
        assert [name.rpartition(".")[2] for name in files_of(root)] == ["filling"]
        waiters, opened = start_waiting(model, root, num_waiters)
        assert all(waiter.is_alive() for waiter in waiters), "the rows are not complete yet"
        cues.may_go_on.set()
        for waiter in waiters:
            waiter.join(20)
        assert filler.is_alive()
        assert len(opened) == num_waiters, "waited for a filler that was done"
    assert filler.exitcode == 0
    for table in opened:
        assert table.tiers[0].is_filled
        assert_rows(table, model[1])
        table.close()


@pytest.mark.parametrize("num_waiters", [1, 4])
def test_waiters_take_over_from_a_killed_filler(model, root, num_waiters) -> None:
    """One of them fills anew, the others wait for that one."""
    with filling(model[0], root) as (filler, _):
        waiters, opened = start_waiting(model, root, num_waiters)
        os.kill(filler.pid, signal.SIGKILL)
        filler.join(60)
        for waiter in waiters:
            waiter.join(20)
        assert len(opened) == num_waiters
    assert sorted(table.tiers[0].is_filled for table in opened) == [
        False,
        *[True] * (num_waiters - 1),
    ]
    for table in opened:
        assert_rows(table, model[1])
        table.close()


def test_memory_of_rows_that_are_being_filled_need_not_be_free_again(model, root) -> None:
    """Processes that start together, on a machine that has room for one copy."""
    settings = Settings(share_folder=root, memory_limit_bytes=model[1].nbytes // 2)
    with pytest.raises(CapacityError):
        Table.open(model[0], share="rows", settings=settings)
    with filling(model[0], root) as (_, cues):
        threading.Timer(0.2, cues.may_go_on.set).start()
        with Table.open(model[0], share="rows", settings=settings) as table:
            assert_rows(table, model[1])


def test_a_killed_filler_leaves_nothing_that_is_served(model, root) -> None:
    for _ in range(3):
        with filling(model[0], root) as (filler, _):
            os.kill(filler.pid, signal.SIGKILL)
            filler.join(60)
            assert [name.rpartition(".")[2] for name in files_of(root)] == ["filling"]
    with open_shared(model, root) as table:
        assert not table.tiers[0].is_filled, "it had to be filled anew"
        assert_rows(table, model[1])
    assert [name.rpartition(".")[2] for name in files_of(root)] == ["rows"]


def test_killed_at_random_points(model, root) -> None:
    """Whatever a killed process leaves, the next one has the right rows."""
    for i in range(15):
        child = os.fork()
        if child == 0:
            try:
                while True:
                    open_shared(model, root).close()
                    with ShareFolder(root) as folder:
                        folder.prune()
            finally:
                os._exit(1)
        time.sleep(0.002 + 0.003 * i)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        with open_shared(model, root) as table:
            assert_rows(table, model[1])
        if i % 3 == 0:
            with ShareFolder(root) as folder:
                folder.prune()


def test_a_failed_filler_removes_its_file(model, root, monkeypatch) -> None:
    from gramary.storage import row_store

    def fail(*_: object, **__: object) -> None:
        raise RowReadError("scripted", file="x", offset=0, errno=5)

    monkeypatch.setattr(row_store, "read_in_order", fail)
    with pytest.raises(RowReadError):
        open_shared(model, root)
    assert files_of(root) == []
    monkeypatch.undo()
    with open_shared(model, root) as table:
        assert_rows(table, model[1])


@pytest.mark.behaviour(6)
@pytest.mark.needs("mounting")
def test_too_small_a_tmpfs_is_an_error_with_numbers(model, tmp_path, root) -> None:
    """Behaviour 6: needed and free bytes, and what to do; nothing stays behind."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(CapacityError, match=r"needs [\d,]+ bytes .* has [\d,]+ free"):
            open_shared(model, root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_of(root) == []
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(small)]
    subprocess.run(mount, check=True)
    try:
        with pytest.raises(CapacityError, match=r"needs 40,960 bytes .* 16,384 free.*remount"):
            open_shared(model, str(small))
        assert files_of(str(small)) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize("spoil", ["mode", "link", "folder mode", "folder link", "size", "pipe"])
def test_what_is_not_private_is_refused(model, root, spoil) -> None:
    open_shared(model, root).close()
    with ShareFolder(root) as folder:
        path = Path(folder.path)
        rows = path / next(folder.files()).file_name
    if spoil == "mode":
        rows.chmod(0o644)
    elif spoil == "link":
        rows.rename(path / "elsewhere")
        rows.symlink_to(path / "elsewhere")
    elif spoil == "folder mode":
        path.chmod(0o755)
    elif spoil == "folder link":
        path.rename(Path(root) / "real")
        path.symlink_to(Path(root) / "real")
    elif spoil == "size":
        os.truncate(rows, 8192)
    else:
        rows.unlink()
        os.mkfifo(rows, 0o600)
    with pytest.raises(PlacementError, match=r"share: .*(remove it|chmod|GRAMARY_SHARE_FOLDER)"):
        open_shared(model, root)


@pytest.mark.behaviour(13)
def test_what_cannot_be_shared_is_refused(model, root, tmp_path) -> None:
    """Behaviour 13: a share that cannot be honoured is an error where it is given."""
    for name in ("", "a/b", "..", ".hidden", "-x", "x" * 65, "a\n"):
        with pytest.raises(ArgumentError, match="share: expected 1 to 64"):
            open_shared(model, root, share=name)
    with pytest.raises(PlacementError, match="no host rows"):
        open_shared(model, root, placement="disk")
    with pytest.raises(PlacementError, match="instead of auto"):
        open_shared(model, root, placement="host=auto")
    if os.stat(tmp_path).st_dev != os.stat("/dev/shm").st_dev:
        with pytest.raises(PlacementError, match=r"to be a tmpfs.*set GRAMARY_SHARE_FOLDER"):
            open_shared(model, str(tmp_path))
    with pytest.raises(PlacementError, match=r"cannot use.*set GRAMARY_SHARE_FOLDER"):
        open_shared(model, f"{root}/missing")


@pytest.mark.behaviour(8)
def test_nothing_is_left_open(model, root) -> None:
    def leftovers() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("gramary-" in line for line in maps)

    open_shared(model, root).close()
    before = leftovers()
    for _ in range(20):
        open_shared(model, root).close()
        with pytest.raises(PlacementError):
            open_shared(model, root, placement="host=auto")
    assert leftovers() == before


def test_prune_removes_what_nobody_uses(model, root, monkeypatch, capsys) -> None:
    monkeypatch.setenv("GRAMARY_SHARE_FOLDER", root)
    open_shared(model, root, share="idle").close()
    key = ShareKey(root, "filling", "some model", Codec("bf16", 8))
    filler = SharedMapping(key, 0, 100)

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(["prune", *words])
        assert not left.value.code
        return capsys.readouterr().out

    with open_shared(model, root, share="busy") as table:
        listed = run("--dry-run")
        assert "can be freed" in listed
        assert len(files_of(root)) == 3
        removed = run()
        for text in (listed, removed):
            lines = text.splitlines()
            assert any("kept" in line and "busy" in line and "in use" in line for line in lines)
            assert any("kept" in line and "being filled" in line for line in lines)
        assert "removed" in removed
        assert "idle" in removed
        assert sorted(name.partition("-")[0] for name in files_of(root)) == ["busy", "filling"]
        assert_rows(table, model[1])
    filler.close()
    run()
    assert files_of(root) == []


@pytest.mark.parametrize("kind", ["mode", "link", "pipe", "folder", "two names"])
def test_what_is_none_of_ours_hinders_nobody(model, root, caplog, kind) -> None:
    """It is told and left alone; other rows are shared and pruned all the same."""
    open_shared(model, root, share="idle").close()
    with ShareFolder(root) as folder:
        odd = Path(folder.path, "odd.rows")
    if kind == "link":
        odd.symlink_to("elsewhere")
    elif kind == "pipe":
        os.mkfifo(odd)
    elif kind == "folder":
        odd.mkdir()
    else:
        odd.write_bytes(b"x")
        odd.chmod(0o600 if kind == "two names" else 0o644)
        if kind == "two names":
            os.link(odd, odd.with_name("other"))
    with open_shared(model, root) as table:
        assert_rows(table, model[1])
    with ShareFolder(root) as folder:
        assert len(folder.prune()) == 2
    assert os.path.lexists(odd)
    assert any("odd.rows" in message and "left alone" in message for message in caplog.messages)
