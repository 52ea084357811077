"""Building packs: the right bytes, reuse without a write, one writer, resuming, no room."""

import fcntl
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from abilities import READERS
from files.pack.conftest import CODECS, write_source

from gramary.errors import ArgumentError, ChecksumError, PackError
from gramary.files.layout import RowFile, TableSource
from gramary.files.pack import build_pack, open_pack, recoding, verify_pack
from gramary.files.pack.opening import read_header
from gramary.files.page_cache import Span, resident_pages
from gramary.files.stream import read_rows, stream_rows
from gramary.model.codecs import decode_rows_ref, encode_rows
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier


def rows_of(source) -> torch.Tensor:
    out = torch.empty(source.layout.num_rows, source.layout.row_bytes, dtype=torch.uint8)
    read_rows(source.layout, 0, len(out), out)
    return out


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", READERS)
def test_pack_and_folder_give_the_same_bytes(make_source, tmp_path, codec, reader) -> None:
    source, rows = make_source(codec)
    report = build_pack(source, tmp_path / "table.pack")
    assert (report.outcome, report.error) == ("built", None)
    pack = open_pack(tmp_path / "table.pack")
    assert (pack.spec, pack.codec, pack.model_id) == (source.spec, source.codec, source.model_id)
    assert torch.equal(rows_of(pack), rows)
    row_ids = torch.randint(0, len(rows), (500,))
    for layout in (source.layout, pack.layout):
        tier = DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))
        out = torch.full((500, layout.row_bytes), 0xA5, dtype=torch.uint8)
        tier.gather(row_ids, out)
        tier.close()
        assert torch.equal(out, rows[row_ids])
    assert verify_pack(tmp_path / "table.pack", against=source).error is None


@pytest.mark.parametrize("codec", ["fp8", "nvfp4"])
def test_rows_are_read_from_a_pack_from_any_row_on(make_source, tmp_path, codec) -> None:
    """Loading an extent begins in the middle of a block, and ends in one."""
    source, rows = make_source(codec, row_dim=160, base=700)
    build_pack(source, tmp_path / "table.pack")
    layout = open_pack(tmp_path / "table.pack").layout
    per_block, num_rows = layout.runs[0].parts[0].rows_per_block, len(rows)
    starts = [0, 1, per_block - 1, per_block, per_block + 1, 3 * per_block + 7, num_rows - 1]
    for start in starts:
        for count in (1, 2, per_block - 1, per_block, per_block + 1, 5 * per_block + 3, num_rows):
            count = min(count, num_rows - start)
            out = torch.full((count, layout.row_bytes), 0xA5, dtype=torch.uint8)
            read_rows(layout, start, count, out)
            assert torch.equal(out, rows[start : start + count]), (start, count)
    for chunk_rows in (1, 7, per_block, 100):
        chunks = stream_rows(layout, 5, num_rows - 3, chunk_bytes=chunk_rows * layout.row_bytes)
        for first_row, chunk in chunks:
            assert torch.equal(chunk, rows[first_row : first_row + len(chunk)])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("target", ["bf16", "fp8", "nvfp4"])
def test_recoding_rounds_each_row_to_nearest_even(make_source, tmp_path, codec, target) -> None:
    source, rows = make_source(codec)
    report = build_pack(source, tmp_path / "table.pack", codec=target)
    pack = open_pack(tmp_path / "table.pack")
    assert pack.codec.name == target
    if target == codec:
        assert report.error is None
        assert torch.equal(rows_of(pack), rows)
        return
    values = decode_rows_ref(source.codec, rows, torch.float32)
    expected, described = encode_rows(target, values)
    assert pack.codec == described, "the scale is the one of the whole table"
    assert torch.equal(rows_of(pack), expected)
    recoded = decode_rows_ref(described, expected, torch.float32)
    assert report.error.num_values == values.numel()
    assert report.error.max_abs == pytest.approx(float((recoded - values).abs().max()), rel=1e-6)
    assert verify_pack(tmp_path / "table.pack", against=source).error == report.error
    assert pack.model_id != source.model_id


def test_a_value_that_is_not_finite_cannot_be_scaled(make_source, tmp_path) -> None:
    source, rows = make_source("bf16")
    rows.view(torch.bfloat16)[77, 5] = float("nan")
    source = write_source(tmp_path / "nan", source.spec, rows, source.codec)
    with pytest.raises(ArgumentError, match=r"row 77 .*not finite"):
        build_pack(source, tmp_path / "table.pack", codec="fp8")
    assert list(tmp_path.glob("table.pack*")) == [], "what was not begun leaves nothing"
    build_pack(source, tmp_path / "kept.pack")
    assert torch.equal(rows_of(open_pack(tmp_path / "kept.pack")), rows)


@pytest.mark.behaviour(29)
def test_a_built_pack_is_reused_without_a_write(make_source, tmp_path) -> None:
    """Behaviour 29: no byte is written, and the folder stays as it was."""
    source, _ = make_source("bf16")
    path = tmp_path / "table.pack"
    build_pack(source, path, codec="fp8")
    os.chmod(path, 0o444)
    before = (os.stat(path).st_mtime_ns, os.stat(path).st_ctime_ns, path.read_bytes())
    report = build_pack(source, path, codec="fp8")
    assert (report.outcome, report.num_rows_written) == ("reused", 0)
    after = (os.stat(path).st_mtime_ns, os.stat(path).st_ctime_ns, path.read_bytes())
    assert after == before
    assert not Path(f"{path}.partial").exists()


@pytest.mark.behaviour(29)
@pytest.mark.parametrize("codec", ["keep", "bf16"])
def test_a_pack_that_is_older_than_its_source_is_compared_before_it_is_reused(
    make_source, tmp_path, codec
) -> None:
    """Behaviour 29: a row that the table's identity does not look at may have been changed."""
    source, _ = make_source("fp8", base=2_000)
    path, shard = tmp_path / "table.pack", Path(source.layout.files[0].path)
    build_pack(source, path, codec=codec)
    packed = path.read_bytes()

    def describe_again() -> TableSource:
        files = tuple(RowFile.from_path(file.path) for file in source.layout.files)
        return replace(source, layout=replace(source.layout, files=files))

    later = os.stat(path).st_mtime_ns + 1_000_000
    os.utime(shard, ns=(later, later))
    seen: list[tuple[int, int]] = []
    report = build_pack(
        describe_again(), path, codec=codec, progress=lambda *done: seen.append(done)
    )
    assert (report.outcome, report.num_rows_written) == ("reused", 0)
    assert seen, "a long comparison shows how far it is"
    assert path.read_bytes() == packed
    part = source.layout.runs[0].parts[0]
    with shard.open("r+b") as file:
        file.seek(part.byte_of(17))
        byte = file.read(1)[0]
        file.seek(part.byte_of(17))
        file.write(bytes([byte ^ 1]))
    os.utime(shard, ns=(later, later))
    with pytest.raises(PackError, match=r"row 17 .*remove the pack and build it again"):
        build_pack(describe_again(), path, codec=codec)
    assert path.read_bytes() == packed
    path.unlink()
    assert build_pack(describe_again(), path, codec=codec).outcome == "built"
    assert path.read_bytes() != packed


def test_another_tables_pack_is_not_overwritten(make_source, tmp_path) -> None:
    path = tmp_path / "table.pack"
    build_pack(make_source("fp8", seed=1)[0], path)
    before = path.read_bytes()
    with pytest.raises(PackError, match="another table or codec"):
        build_pack(make_source("fp8", seed=2)[0], path)
    with pytest.raises(PackError, match="another table or codec"):
        build_pack(make_source("fp8", seed=1)[0], path, codec="bf16")
    path.write_bytes(b"something else")
    with pytest.raises(PackError, match="it is no pack"):
        build_pack(make_source("fp8", seed=1)[0], path)
    assert path.read_bytes() == b"something else"
    assert len(before) > 8192


def test_one_writer(make_source, tmp_path) -> None:
    source, _ = make_source()
    partial = tmp_path / "table.pack.partial"
    with open(partial, "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(PackError, match="another process is building"):
            build_pack(source, tmp_path / "table.pack")
    assert build_pack(source, tmp_path / "table.pack").outcome == "built"
    assert not partial.exists()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_file_in_the_way_is_refused(make_source, tmp_path, kind) -> None:
    partial = tmp_path / "table.pack.partial"
    if kind == "link":
        victim = tmp_path / "victim"
        victim.write_bytes(b"precious")
        partial.symlink_to(victim)
    elif kind == "folder":
        partial.mkdir()
    else:
        os.mkfifo(partial)
    with pytest.raises(PackError, match="expected a regular file"):
        build_pack(make_source()[0], tmp_path / "table.pack")
    if kind == "link":
        assert victim.read_bytes() == b"precious"


@pytest.mark.behaviour(29)
@pytest.mark.parametrize("codec", ["keep", "nvfp4"])
def test_a_killed_build_resumes_wherever_it_was_killed(make_source, tmp_path, codec) -> None:
    """Behaviour 29: the file of a killed run, cut or spoilt at any byte, ends up the same."""
    source, _ = make_source("bf16", base=400)
    whole_path = tmp_path / "whole.pack"
    build_pack(source, whole_path, codec=codec)
    whole = whole_path.read_bytes()
    header = open_pack(whole_path)
    partial_header = _partial_header(whole_path)
    generator = torch.Generator().manual_seed(0)
    stops = [0, 1, 47, len(partial_header) - 1, len(partial_header), len(whole) - 1, len(whole)]
    stops += torch.randint(0, len(whole), (20,), generator=generator).tolist()
    for i, stop in enumerate(stops):
        path = tmp_path / f"killed{i}.pack"
        written = (partial_header + whole[len(partial_header) :])[:stop]
        Path(f"{path}.partial").write_bytes(written.ljust(len(whole), b"\0"))
        report = build_pack(source, path, codec=codec)
        assert report.outcome == ("resumed" if stop >= len(partial_header) else "built")
        assert path.read_bytes() == whole
        block_bytes = header.details["block_bytes"]
        if report.outcome == "resumed":
            good_blocks = stop // block_bytes - len(partial_header) // block_bytes
            good_rows = min(good_blocks * header.details["rows_per_block"], source.spec.num_rows)
            assert report.num_rows_written == source.spec.num_rows - good_rows
    # Killed between the final header and the rename.
    Path(f"{tmp_path / 'last.pack'}.partial").write_bytes(whole)
    assert build_pack(source, tmp_path / "last.pack", codec=codec).num_rows_written == 0
    # What another table's build left is done again.
    other, _ = make_source("bf16", seed=9, base=400)
    Path(f"{tmp_path / 'other.pack'}.partial").write_bytes(partial_header + whole[8192:])
    assert build_pack(other, tmp_path / "other.pack", codec=codec).outcome == "built"
    verify_pack(tmp_path / "other.pack", against=other)


def _partial_header(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_header(descriptor, path).to_bytes(partial=True)
    finally:
        os.close(descriptor)


def run_and_kill(action: Callable[[], object], delay_s: float) -> None:
    """Runs an action over and over in a child process, which is killed so long after it began."""
    begun, begins = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(begins, b"x")
            while True:
                action()
        finally:
            os._exit(1)
    os.read(begun, 1)
    os.close(begun)
    os.close(begins)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.behaviour(29)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("codec", ["keep", "fp8", "nvfp4", "bf16"])
def test_kill_minus_nine_at_random_points(make_source, tmp_path, monkeypatch, codec) -> None:
    """Behaviour 29: whatever a killed process leaves, the next build gives the right file."""
    # Many chunks, so that there is something between them to be killed at.
    monkeypatch.setattr(recoding, "CHUNK_BYTES", 1 << 16)
    source, _ = make_source("fp32" if codec == "fp8" else "fp8", row_dim=160, base=3000)
    reference = tmp_path / "reference.pack"
    build_pack(source, reference, codec=codec)
    path = tmp_path / "table.pack"

    def build_and_remove() -> None:
        build_pack(source, path, codec=codec)
        path.unlink()

    # On a machine that is busy a build takes many times as long as the one before it.
    started = time.monotonic()
    build_and_remove()
    build_s = time.monotonic() - started
    outcomes: set[str] = set()
    num_kills = 0
    while num_kills < 20 or (num_kills < 200 and "resumed" not in outcomes):
        # From soon after the first build's beginning to some way into the second.
        run_and_kill(build_and_remove, build_s * (0.1 + 0.08 * (num_kills % 20)))
        num_kills += 1
        if path.exists():
            assert path.read_bytes() == reference.read_bytes(), "what has the name is complete"
        outcomes.add(build_pack(source, path, codec=codec).outcome)
        assert path.read_bytes() == reference.read_bytes()
        path.unlink()
    assert "resumed" in outcomes


def test_no_room_is_an_error_with_numbers(make_source, tmp_path) -> None:
    source, _ = make_source("fp32", base=2000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(PackError, match=r"cannot reserve \d+ bytes .* bytes are free"):
            build_pack(source, tmp_path / "table.pack")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.glob("table.pack*")) == []
    assert build_pack(source, tmp_path / "table.pack").outcome == "built"


@pytest.mark.behaviour(29, 32)
@pytest.mark.parametrize("reader", READERS)
def test_an_altered_block_is_refused_by_the_read_that_meets_it(
    make_source, tmp_path, reader
) -> None:
    """Behaviours 29 and 32: that request fails, naming block and checksums; others do not."""
    source, rows = make_source("fp8", row_dim=160, base=400)
    path = tmp_path / "table.pack"
    build_pack(source, path)
    pack = open_pack(path)
    tier = DiskTier(pack.layout, 0, len(rows), Settings(disk_reader=reader))
    offset = pack.layout.runs[0].parts[0].offset + 3 * 4096 + 1000
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 4]))
    out = torch.empty(1, 160, dtype=torch.uint8)
    with pytest.raises(ChecksumError, match=f"byte {offset - 1000} was altered: stored"):
        tier.gather(torch.tensor([3 * 25 + 1]), out)
    with pytest.raises(ChecksumError, match=r"rows 75 to 99\) was altered"):
        verify_pack(path)
    good = torch.tensor([0, 74, 100, len(rows) - 1])
    out = torch.empty(4, 160, dtype=torch.uint8)
    tier.gather(good, out)
    assert torch.equal(out, rows[good])
    tier.close()


def test_verify_against_another_table(make_source, tmp_path) -> None:
    source, rows = make_source("fp8")
    build_pack(source, tmp_path / "table.pack")
    with pytest.raises(ArgumentError, match="its model is"):
        verify_pack(tmp_path / "table.pack", against=make_source("fp8", seed=5)[0])
    # The same identity but one other byte.
    changed = rows.clone()
    changed[123, 4] ^= 1
    twin = write_source(tmp_path / "twin", source.spec, changed, source.codec)
    with pytest.raises(PackError, match="row 123 is not the one"):
        verify_pack(tmp_path / "table.pack", against=replace(twin, model_id=source.model_id))


@pytest.mark.behaviour(33)
def test_progress_runs_to_the_end(make_source, tmp_path) -> None:
    """Behaviour 33: bytes done rise to the total, for building, re-coding and checking."""
    source, _ = make_source("bf16", base=400)
    for codec in ("keep", "fp8"):
        seen: list[tuple[int, ...]] = []

        def note(*now: int, seen: list[tuple[int, ...]] = seen) -> None:
            seen.append(now)

        path = tmp_path / f"{codec}.pack"
        build_pack(source, path, codec=codec, progress=note)
        assert seen[-1] == (source.layout.nbytes, source.layout.nbytes)
        verify_pack(path, against=source, progress=note)
        assert seen[-1][0] == seen[-1][1]
        assert all(done <= total for done, total in seen)


def resident_share(path: Path) -> float:
    """How much of a file the page cache holds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return float(resident_pages(Span(descriptor, 0, path.stat().st_size)).mean())
    finally:
        os.close(descriptor)


def drop_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.mark.behaviour(5)
@pytest.mark.needs("direct_io", "droppable_cache")
def test_building_leaves_the_page_cache_alone(make_source, tmp_path) -> None:
    """Behaviour 5: neither source nor pack fills it, and what was cached stays."""
    source, _ = make_source("fp8", row_dim=160, base=20_000)
    shards = [Path(file.path) for file in source.layout.files]
    for shard in shards[1:]:
        drop_cache(shard)
    shards[0].read_bytes()
    build_pack(source, tmp_path / "table.pack")
    assert resident_share(shards[0]) > 0.9
    assert all(resident_share(shard) < 0.1 for shard in shards[1:])
    assert resident_share(tmp_path / "table.pack") < 0.1
    # So does checking it, and what a killed build left.
    verify_pack(tmp_path / "table.pack", against=source)
    os.rename(tmp_path / "table.pack", tmp_path / "other.pack.partial")
    assert build_pack(source, tmp_path / "other.pack").outcome == "resumed"
    assert resident_share(shards[0]) > 0.9
    assert all(resident_share(shard) < 0.1 for shard in shards[1:])
    assert resident_share(tmp_path / "other.pack") < 0.1


@pytest.mark.behaviour(5)
@pytest.mark.needs("superuser", "droppable_cache")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_packing_the_files_of_another_user_leaves_the_page_cache_alone(
    make_source, open_folder
) -> None:
    """Behaviour 5: the kernel does not tell what is cached of them, and calls it everything."""
    source, rows = make_source("fp8", folder=open_folder, row_dim=160, base=20_000)
    shards = [Path(file.path) for file in source.layout.files]
    for shard in shards:
        drop_cache(shard)
    theirs = open_folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)

    def pack_as_another() -> None:
        os.setresuid(65534, 65534, 65534)
        build_pack(source, theirs / "table.pack")

    peak_of(pack_as_another)
    assert torch.equal(rows_of(open_pack(theirs / "table.pack")), rows)
    assert all(resident_share(shard) < 0.1 for shard in shards)


@pytest.mark.behaviour(4)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("kept_as", "base", "codec"),
    [
        ("bf16", 40_000, "keep"),
        ("bf16", 40_000, "fp8"),
        ("bf16", 40_000, "nvfp4"),
        ("fp8", 80_000, "nvfp4"),
        # Rows that grow.
        ("nvfp4", 140_000, "bf16"),
    ],
)
def test_building_needs_less_memory_than_two_shards(
    make_source, tmp_path, kept_as, base, codec
) -> None:
    """Behaviour 4: the peak of a process that does nothing else."""
    source, rows = make_source(kept_as, row_dim=160, base=base)
    shard_bytes = source.layout.runs[0].num_rows * source.layout.row_bytes
    assert shard_bytes > 15 << 20
    del rows
    path = tmp_path / "table.pack"
    assert peak_of(lambda: build_pack(source, path, codec=codec)) < 2 * shard_bytes
    assert peak_of(lambda: verify_pack(path, against=source)) < 2 * shard_bytes
    os.rename(path, f"{path}.partial")
    assert peak_of(lambda: build_pack(source, path, codec=codec)) < 2 * shard_bytes, "resumed"


def peak_of(action: Callable[[], object]) -> int:
    """Most memory that an action takes, in a process that does nothing else."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            Path("/proc/self/clear_refs").write_text("5")
            before = peak_bytes()
            action()
            os.write(writing, str(peak_bytes() - before).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as answer:
        return int(answer.read())


def peak_bytes() -> int:
    """Most resident memory of this process since it was last asked to forget."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
