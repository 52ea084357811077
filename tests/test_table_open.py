"""Opening tables from files: every placement, little memory, nothing left behind."""

import itertools
import logging
import os
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from children import run_apart
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_stage import (
    CODECS,
    OUTPUT_DTYPES,
    Folder,
    expected_embedding,
    expected_rows,
    random_batch,
    same_bits,
    small_spec,
    write_table_folder,
    write_table_folders,
)

from gramary import Table
from gramary.errors import (
    ArgumentError,
    CapacityError,
    ChecksumError,
    GramaryError,
    LoadError,
    PackError,
    RowReadError,
)
from gramary.files.pack import build_pack
from gramary.files.source import open_source
from gramary.model.codecs import Codec
from gramary.settings import Settings

SPEC = small_spec()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    """A model folder of each codec, its encoded rows and its codec."""
    return write_table_folders(tmp_path_factory, SPEC)


PLACEMENTS = (
    "host",
    "disk",
    "host=10000,disk",
    "host=0,disk",
    "device=0,host=1KiB,disk",
    "host=auto",
)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("codec_name", CODECS)
def test_rows_of_every_placement(
    folders: dict[str, Folder], codec_name: str, placement: str
) -> None:
    path, encoded, codec = folders[codec_name]
    batch = random_batch(SPEC, [30, 0, 7], num_padding=2)
    row_ids = torch.cat(
        [torch.randint(-1, SPEC.num_rows, (60,)), torch.tensor([SPEC.num_rows - 1])]
    )
    with Table.open(path, placement=placement) as table:
        assert table.codec == codec
        assert table.spec == SPEC
        for dtype in OUTPUT_DTYPES:
            assert same_bits(
                table.lookup(row_ids, dtype=dtype), expected_rows(codec, encoded, row_ids, dtype)
            )
            assert same_bits(
                table.embed(*batch, dtype=dtype),
                expected_embedding(SPEC, codec, encoded, batch, dtype),
            )
        table.check()
        table.check_integrity()


@pytest.mark.behaviour(11)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    codec_name=st.sampled_from(CODECS),
    host_bytes=st.integers(0, 140_000),
    device_first=st.booleans(),
    shard=st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]),
    shard_by=st.sampled_from(["rows", "heads"]),
    seed=st.integers(0, 1000),
)
def test_any_split_gives_the_same_bytes(
    folders: dict[str, Folder], codec_name: str, host_bytes: int, device_first: bool,
    shard: tuple[int, int], shard_by: str, seed: int,
) -> None:  # fmt: skip
    """Behaviour 11: the same bytes for every split, in every shard."""
    if shard_by == "heads" and shard[1] == 3:
        shard = (1, 4)
    path, encoded, codec = folders[codec_name]
    batch = random_batch(SPEC, [20, 5], seed)
    placement = f"host={host_bytes},disk"
    if device_first:
        placement = f"device=0,{placement}"
    with Table.open(path, placement=placement, shard=shard, shard_by=shard_by) as table:
        held = (table.placement.first_row, table.placement.end_row)
        expected = expected_embedding(SPEC, codec, encoded, batch, torch.uint8, held)
        assert same_bits(table.embed(*batch, dtype=torch.uint8), expected)


@pytest.mark.behaviour(11)
def test_a_tier_without_rows_costs_nothing(folders: dict[str, Folder]) -> None:
    """Behaviour 11: no memory for zero host rows, no open file for zero disk rows."""
    path, _, _ = folders["bf16"]
    with Table.open(path, placement="host=0,disk") as table:
        assert [tier.name for tier in table.stats().tiers] == ["disk"]
        assert "memfd:gramary" not in Path("/proc/self/maps").read_text()
    before = len(os.listdir("/proc/self/fd"))
    with Table.open(path, placement="host,disk") as table:
        assert [tier.name for tier in table.stats().tiers] == ["host"]
        assert len(os.listdir("/proc/self/fd")) == before + 1, "the memfd and no file"


@pytest.mark.behaviour(8)
def test_a_hundred_opens_leave_nothing(folders: dict[str, Folder], tmp_path: Path) -> None:
    """Behaviour 8: no descriptor, mapping or thread is left, also after a failed open."""
    path, encoded, codec = folders["nvfp4"]
    broken = write_table_folder(tmp_path / "broken", SPEC, encoded, codec)
    with open(broken / "model.safetensors", "r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 1)

    def held() -> tuple[int, int, int]:
        maps = Path("/proc/self/maps").read_text()
        return (
            len(os.listdir("/proc/self/fd")),
            maps.count("memfd:gramary"),
            len(os.listdir("/proc/self/task")),
        )

    pack = tmp_path / "table.pack"
    build_pack(open_source(path), pack)
    cut = tmp_path / "cut.pack"
    cut.write_bytes(pack.read_bytes()[:-1])
    spoilt = tmp_path / "spoilt.pack"
    spoilt.write_bytes(pack.read_bytes()[:-1] + b"?")
    for model in (path, pack):
        Table.open(model, placement="host=9000,disk").close()
    before = held()
    for turn in range(100):
        for model in (path, pack):
            with Table.open(model, placement="host=9000,disk") as table:
                table.lookup(torch.tensor([0, SPEC.num_rows - 1]))
        if turn % 5:
            continue
        with pytest.raises(PackError, match="truncated"):
            Table.open(cut, placement="host")
        with pytest.raises(ChecksumError, match="was altered"):
            Table.open(spoilt, placement="host")
        with pytest.raises(GramaryError):
            Table.open(broken, placement="host")
        with pytest.raises(CapacityError):
            Table.open(path, placement="host", settings=Settings(memory_limit_bytes=1))
    assert held() == before


def test_a_failed_read_while_loading_leaves_nothing(
    folders: dict[str, Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gramary.storage import row_store

    def fail_late(*arguments: object, **options: object) -> object:
        chunks = real(*arguments, **options)
        yield next(chunks)
        raise RowReadError("reading rows", file="f", offset=3, errno=5)

    real = row_store.read_in_order
    monkeypatch.setattr(row_store, "read_in_order", fail_late)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RowReadError, match="f at byte 3"):
        Table.open(folders["bf16"][0])
    assert len(os.listdir("/proc/self/fd")) == before
    assert "memfd:gramary" not in Path("/proc/self/maps").read_text()


def test_no_row_is_read_before_everything_is_checked(
    folders: dict[str, Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_arguments: object, **_options: object) -> None:
        pytest.fail("a row was read")

    monkeypatch.setattr("gramary.storage.row_store.read_in_order", never)
    for options in ({"placement": "host=1"}, {"placement": "gpu"}, {"shard": (1, 1)},
                    {"settings": Settings(memory_limit_bytes=1)}):  # fmt: skip
        with pytest.raises(GramaryError):
            Table.open(folders["bf16"][0], **options)


@pytest.mark.behaviour(14)
def test_opening_tells_each_tiers_rows_and_bytes(
    folders: dict[str, Folder], caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 14: start-up prints each tier's rows and bytes, and the command to see it again."""
    path, _, _ = folders["fp8"]
    with caplog.at_level(logging.INFO, "gramary"), Table.open(path, placement="host=10KiB,disk"):
        pass
    text = "\n".join(caplog.messages)
    assert "host             320 rows   10.0 KiB  10.0 KiB asked for" in text
    assert "disk             960 rows   30.0 KiB  the rest stays in the files" in text
    assert f"gramary plan {path} --placement host=10KiB,disk" in text


@pytest.mark.behaviour(33)
def test_progress_is_reported_in_bytes(folders: dict[str, Folder]) -> None:
    """Behaviour 33: long work reports bytes done of all bytes; rows on disk are no work."""
    path, encoded, _ = folders["bf16"]
    calls: list[tuple[int, int]] = []
    Table.open(path, progress=lambda done, total: calls.append((done, total))).close()
    assert calls[-1] == (encoded.numel(), encoded.numel())
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    calls.clear()
    Table.open(path, placement="disk", progress=lambda *call: calls.append(call)).close()
    assert calls == []


def test_integrity_compares_rows_with_the_files(folders: dict[str, Folder]) -> None:
    with Table.open(folders["bf16"][0]) as table:
        table.check_integrity()
        table.tiers[0].rows[SPEC.num_rows - 1, 3] ^= 1
        with pytest.raises(LoadError, match=f"row {SPEC.num_rows - 1:,} in the host tier differs"):
            table.check_integrity()


def test_integrity_finds_files_that_changed(folders: dict[str, Folder], tmp_path: Path) -> None:
    _, encoded, codec = folders["bf16"]
    path = write_table_folder(tmp_path, SPEC, encoded, codec)
    with Table.open(path, placement="disk") as table:
        os.utime(path / "model.safetensors", (1, 1))
        with pytest.raises(RowReadError, match="changed"):
            table.check_integrity()


def test_several_layers_must_be_told_apart(folders: dict[str, Folder]) -> None:
    with pytest.raises(GramaryError):
        Table.open(folders["bf16"][0], table_index=1)
    Table.open(folders["bf16"][0], table_index=0).close()
    with pytest.raises(ArgumentError, match="path"):
        Table.open("/nowhere/at/all")


def test_lookups_of_disk_rows_on_many_threads(folders: dict[str, Folder]) -> None:
    path, encoded, codec = folders["nvfp4"]
    wrong: list[str] = []
    with Table.open(path, placement="host=20000,disk") as table:

        def read(seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(30):
                row_ids = torch.randint(-1, SPEC.num_rows, (77,), generator=generator)
                if not same_bits(table.lookup(row_ids), expected_rows(codec, encoded, row_ids)):
                    wrong.append("a wrong row")

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert wrong == []


LOADING = """
    import re, sys
    import torch
    from gramary import Table
    from gramary.model.codecs import Codec
    from gramary.settings import Settings
    from table_stage import small_spec

    def rss(field):
        with open("/proc/self/status") as status:
            return int(re.search(rf"{field}:\\s+(\\d+) kB", status.read())[1]) << 10

    # The first use of everything is paid for before measuring.
    Table.open(sys.argv[1]).close()
    before = rss("VmRSS")
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    if sys.argv[3] == "open":
        table = Table.open(sys.argv[2])
    else:
        spec = small_spec(base=int(sys.argv[4]))
        codec = Codec("fp8", 32, 1.0)
        table = Table.empty(spec, codec, num_shards=6)
        each = -(-spec.num_rows // 6)
        for index in range(6):
            rows = torch.ones(min(each, spec.num_rows - index * each), 32, dtype=torch.uint8)
            table.load_shard(index, rows)
            del rows
        table.finish_loading()
    print(rss("VmHWM") - before, table.spec.num_rows * table.codec.row_bytes)
"""


@pytest.mark.behaviour(4)
@pytest.mark.parametrize("way", ["open", "load_shard"])
def test_loading_peaks_below_the_table_and_two_shards(
    folders: dict[str, Folder], tmp_path: Path, way: str
) -> None:
    """Behaviour 4: peak memory beyond the tiers stays below two shards."""
    base, num_shards = 700_000, 6
    spec = small_spec(base=base)
    if way == "open":
        encoded = torch.ones(spec.num_rows, 32, dtype=torch.uint8)
        write_table_folder(tmp_path, spec, encoded, Codec("fp8", 32, 1.0), num_shards)
        del encoded
    result = run_apart(
        textwrap.dedent(LOADING), folders["fp8"][0], tmp_path, way, base,
        # What the child frees must leave it, or the allocator's habits are measured.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "1048576"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    peak, table_bytes = map(int, result.stdout.split())
    assert table_bytes > 80 << 20
    assert peak >= table_bytes, "the rows are in memory"
    assert peak < table_bytes + 2 * (table_bytes // num_shards)


def test_chunks_cross_shards_and_tiers(
    folders: dict[str, Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, encoded, codec = folders["fp8"]
    row_ids = torch.arange(SPEC.num_rows)
    for chunk_bytes, host_rows in itertools.product((32, 999, 4096), (1, 255, 257)):
        monkeypatch.setattr("gramary.storage.row_store.CHUNK_BYTES", chunk_bytes)
        with Table.open(path, placement=f"host={host_rows * 32},disk") as table:
            assert same_bits(table.lookup(row_ids), expected_rows(codec, encoded, row_ids))
