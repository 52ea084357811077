"""The table on a GPU: every placement, little memory, no synchronisation, nothing left behind."""

import gc
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_stage import forbid_synchronisation
from hypothesis import given, settings
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
    write_table_folders,
)

from gramary import Table
from gramary.errors import ArgumentError, CapacityError, RowIdError, TokenError, UnsupportedError
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.settings import Settings

pytestmark = pytest.mark.gpu

SPEC = small_spec()
PAGE = 4096
MIB = 1 << 20

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    """A model folder of each codec, its encoded rows and its codec."""
    return write_table_folders(tmp_path_factory, SPEC)


def on_gpu(batch: Batch, device: str = "cuda") -> Batch:
    token_ids, starts, history = (tensor.to(device) for tensor in batch)
    return token_ids, starts, history


def big_spec(num_rows: int) -> HashSpec:
    """Returns the geometry of a table of at least so many rows of 160 values."""
    return HashSpec(500, 7, 3, 2, 160, num_rows // 4, 128, decoder_layer=1)


def big_table(num_rows: int, **options: Any) -> Table:
    """Returns a materialized fp8 table of at least so many rows."""
    options.setdefault("settings", Settings(host_gather_rows=1 << 20))
    table = Table.empty(big_spec(num_rows), Codec("fp8", 160, 1.0), device="cuda", **options)
    table.materialize()
    return table


PLACEMENTS = (
    "device", "host", "disk", "device=10000,host", "host=10000,device",
    "device=9000,host=9000,disk", "device=0,host", "device,host,disk", "device=auto,host",
    "device=5000,disk",
)  # fmt: skip


@pytest.mark.behaviour(11)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("codec_name", CODECS)
def test_rows_of_every_placement(
    folders: dict[str, Folder], codec_name: str, placement: str
) -> None:
    """Behaviour 11: the same bytes for every split, from tokens and ids on either side."""
    path, encoded, codec = folders[codec_name]
    batch = random_batch(SPEC, [60, 0, 7], num_padding=2)
    row_ids = torch.randint(-1, SPEC.num_rows, (400,))
    with Table.open(path, placement=placement, device="cuda") as table:
        for dtype in OUTPUT_DTYPES:
            expected = expected_rows(codec, encoded, row_ids, dtype)
            for ids in (row_ids.cuda(), row_ids, row_ids.int().cuda()):
                rows = table.lookup(ids, dtype=dtype)
                assert rows.device == table.device
                assert same_bits(rows.cpu(), expected)
            expected = expected_embedding(SPEC, codec, encoded, batch, dtype)
            assert same_bits(table.embed(*on_gpu(batch), dtype=dtype).cpu(), expected)
            assert same_bits(table.embed(*batch, dtype=dtype).cpu(), expected)
        table.check()
        table.check_integrity()


@pytest.mark.behaviour(11)
@settings(max_examples=60)
@given(
    codec_name=st.sampled_from(CODECS),
    budgets=st.tuples(st.integers(0, 60_000), st.integers(0, 60_000)),
    order=st.permutations(["device", "host"]),
    shard=st.sampled_from([(0, 1), (0, 2), (1, 2), (3, 4)]),
    shard_by=st.sampled_from(["rows", "heads"]),
    gather_rows=st.sampled_from([0, 1 << 20]),
    seed=st.integers(0, 1000),
)
def test_any_split_gives_the_same_bytes(
    folders: dict[str, Folder], codec_name: str, budgets: tuple[int, int], order: list[str],
    shard: tuple[int, int], shard_by: str, gather_rows: int, seed: int,
) -> None:  # fmt: skip
    """Behaviour 11: random splits and shards, tiers without rows among them, all codecs."""
    path, encoded, codec = folders[codec_name]
    batch = random_batch(SPEC, [20, 5], seed)
    placement = ",".join(f"{name}={size}" for name, size in zip(order, budgets, strict=True))
    options = {"shard": shard, "shard_by": shard_by, "device": "cuda"}
    options["settings"] = Settings(host_gather_rows=gather_rows)
    with Table.open(path, placement=f"{placement},disk", **options) as table:
        held = (table.placement.first_row, table.placement.end_row)
        expected = expected_embedding(SPEC, codec, encoded, batch, torch.uint8, held)
        assert same_bits(table.embed(*on_gpu(batch), dtype=torch.uint8).cpu(), expected)
        assert same_bits(table.embed(*batch, dtype=torch.uint8).cpu(), expected)


@pytest.mark.parametrize("num_tokens", [1, 64, 8192])
def test_the_cpu_path_in_many_pieces(num_tokens: int, folders: dict[str, Folder]) -> None:
    path, encoded, codec = folders["bf16"]
    batch = random_batch(SPEC, [num_tokens])
    expected = expected_embedding(SPEC, codec, encoded, batch)
    for placement in ("host", "device=20000,host", "host=20000,disk"):
        options = {"placement": placement, "settings": Settings(host_gather_rows=0)}
        with Table.open(path, device="cuda", **options) as table:
            for _ in range(3):
                assert same_bits(table.embed(*batch).cpu(), expected)


def test_unregistered_host_rows_take_the_cpu_path(folders: dict[str, Folder]) -> None:
    path, encoded, codec = folders["fp8"]
    batch = random_batch(SPEC, [33])
    expected = expected_embedding(SPEC, codec, encoded, batch)
    with Table.open(path, device="cuda", settings=Settings(pin_host=False)) as table:
        [tier] = table.stats().tiers
        assert tier.facts["locked_bytes"] == 0
        assert same_bits(table.embed(*batch).cpu(), expected)
        assert same_bits(table.embed(*on_gpu(batch)).cpu(), expected)


def load_host_rows(num_rows: int) -> tuple[int, int]:
    """Loads a table of host rows, checks it and closes it; returns what the device lost meanwhile.

    That is by how much the peak rose (this process's own, by torch's allocator), and how much was
    gone (everybody's, by the driver), in bytes.
    """
    torch.cuda.synchronize()
    free_before = torch.cuda.mem_get_info()[0]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    spec = big_spec(num_rows)
    codec = Codec("fp8", 160, 1.0)
    with Table.empty(spec, codec, placement="host", device="cuda", num_shards=8) as table:
        each = -(-spec.num_rows // 8)
        for index in range(8):
            length = min(each, spec.num_rows - index * each)
            table.load_shard(index, torch.full((length, 160), index, dtype=torch.uint8))
        table.finish_loading()
        risen = torch.cuda.max_memory_allocated() - before
        gone = free_before - torch.cuda.mem_get_info()[0]
        rows = table.lookup(torch.tensor([0, each, spec.num_rows - 1]), dtype=torch.uint8)
        assert rows[:, 0].tolist() == [0, 1, 7]
    return risen, gone


@pytest.mark.behaviour(1)
def test_no_device_rows_take_no_device_memory() -> None:
    """Behaviour 1: the device's peak rises by staging at most (and 64 MiB)."""
    big_table(1000).close()
    risen, gone = zip(*(load_host_rows(4_000_000) for _ in range(3)), strict=True)
    assert max(risen) <= 64 * MIB
    # Whoever runs beside this test takes memory too, but not each time.
    assert min(gone) <= 96 * MIB


@pytest.mark.behaviour(3)
def test_locked_bytes_are_the_rows_and_a_page() -> None:
    """Behaviour 3: no rounding to a power of two."""
    with big_table(1_500_000) as table:
        [tier] = table.stats().tiers
        assert tier.nbytes <= tier.facts["locked_bytes"] < tier.nbytes + PAGE


@pytest.mark.behaviour(7)
def test_registration_says_which_way_won(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 7: pieces end on rows; what is read and written across them is right."""
    from gramary.tiers import registration

    with big_table(100_000) as table:
        assert table.stats().tiers[0].facts["registration"].startswith("registered in one piece")
    monkeypatch.setattr(registration, "WAYS", (1 << 20,))
    spec = big_spec(100_000)
    table = Table.empty(spec, Codec("fp8", 160, 1.0), device="cuda")
    rows = torch.randint(0, 255, (spec.num_rows, 160), dtype=torch.uint8, device="cuda")
    table.load_shard(0, rows)
    table.finish_loading()
    assert " pieces of " in table.stats().tiers[0].facts["registration"]
    assert torch.equal(table.lookup(torch.arange(spec.num_rows).cuda(), dtype=torch.uint8), rows)
    table.close()


def held_resources() -> tuple[int, ...]:
    """Returns (descriptors, memfd mappings, threads, locked and pinned kB) of this process."""
    status = Path("/proc/self/status").read_text()
    locked = [int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) for name in ("VmLck", "VmPin")]
    maps = Path("/proc/self/maps").read_text().count("memfd:gramary")
    return len(os.listdir("/proc/self/fd")), maps, len(os.listdir("/proc/self/task")), *locked


@pytest.mark.behaviour(8)
def test_a_hundred_opens_leave_nothing(folders: dict[str, Folder]) -> None:
    """Behaviour 8: descriptors, mappings, locked pages, threads and device memory come back."""
    path, _, _ = folders["fp8"]
    settings = Settings(host_gather_rows=4)
    options = {"placement": "device=8000,host=8000,disk", "device": "cuda", "settings": settings}

    def use() -> None:
        with Table.open(path, **options) as table:
            table.lookup(torch.arange(SPEC.num_rows))
            table.lookup(torch.arange(SPEC.num_rows).cuda())

    use()
    torch.cuda.synchronize()
    gc.collect()
    before, allocated = held_resources(), torch.cuda.memory_allocated()
    for turn in range(100):
        use()
        if turn % 10 == 0:
            with pytest.raises(CapacityError):
                Table.open(path, placement="host", device="cuda",
                           settings=Settings(memory_limit_bytes=1))  # fmt: skip
    gc.collect()
    *held, pinned = held_resources()
    *held_before, pinned_before = before
    assert held == held_before
    # The driver pins some memory of its own when it likes; a table pins 32 MiB a time.
    assert pinned - pinned_before < 4096
    assert torch.cuda.memory_allocated() == allocated


@pytest.mark.behaviour(11)
def test_lookups_never_wait_for_the_device(folders: dict[str, Folder]) -> None:
    """Behaviour 11: device and host rows, and disk tiers without rows, cost no synchronisation."""
    path, encoded, codec = folders["fp8"]
    batch = random_batch(SPEC, [9])
    with Table.open(path, placement="device=9000,host,disk", device="cuda") as table:
        on_device = on_gpu(batch)
        row_ids = torch.arange(50, device="cuda")
        table.embed(*on_device)
        with forbid_synchronisation():
            rows = table.embed(*on_device)
            found = table.lookup(row_ids)
        assert same_bits(rows.cpu(), expected_embedding(SPEC, codec, encoded, batch))
        assert same_bits(found.cpu(), expected_rows(codec, encoded, row_ids.cpu()))


@pytest.mark.behaviour(28)
def test_a_captured_graph_reads_new_tokens(folders: dict[str, Folder]) -> None:
    """Behaviour 28: a replay with other tokens and bounds gives what eager gives."""
    path, encoded, codec = folders["nvfp4"]
    with Table.open(path, placement="device=9000,host", device="cuda") as table:
        static = on_gpu(random_batch(SPEC, [5, 0, 3]))
        out = torch.full((8, SPEC.embed_dim), float("nan"), dtype=torch.bfloat16, device="cuda")
        table.embed(*static, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            table.embed(*static, out=out)
        for seed, lengths in ((1, [2, 2, 4]), (2, [8, 0, 0]), (3, [0, 1, 2])):
            batch = random_batch(SPEC, lengths, seed, num_padding=8 - sum(lengths))
            for tensor, value in zip(static, batch, strict=True):
                tensor.copy_(value)
            out.fill_(float("nan"))
            graph.replay()
            assert same_bits(out.cpu(), expected_embedding(SPEC, codec, encoded, batch))


def test_capturing_disk_rows_names_the_connector(folders: dict[str, Folder]) -> None:
    with Table.open(folders["fp8"][0], placement="device=9000,disk", device="cuda") as table:
        row_ids = torch.arange(5, device="cuda")
        table.lookup(row_ids)
        with pytest.raises(UnsupportedError, match=r"rows on disk .*gramary\.Connector"):
            capture(lambda: table.lookup(row_ids))
        with pytest.raises(UnsupportedError, match=r"gramary\.Connector"):
            capture(lambda: table.lookup(torch.arange(5)))


def capture(work: Callable[[], object]) -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        work()


def test_wrong_ids_are_nan_and_sticky(folders: dict[str, Folder]) -> None:
    path, _, _ = folders["fp8"]
    table = Table.open(path, placement="device=9000,host=9000,disk", device="cuda")
    rows = table.lookup(torch.tensor([0, SPEC.num_rows, -2, 1000], device="cuda"))
    assert rows[1].isnan().all()
    assert rows[2].isnan().all()
    assert not rows[[0, 3]].isnan().any()
    with pytest.raises(RowIdError, match="got"):
        table.check()
    table.check()
    starts = torch.tensor([0, 2], dtype=torch.int32, device="cuda")
    rows = table.embed(torch.tensor([3, SPEC.vocab_size], device="cuda"), starts)
    assert not rows[0].isnan().any()
    assert rows[1].isnan().all()
    with pytest.raises(TokenError, match=str(SPEC.vocab_size)):
        table.stats()
    table.lookup(torch.tensor([2**60], device="cuda"))
    with pytest.raises(RowIdError, match=str(2**60)):
        table.close()
    table.close()


def test_ids_on_the_host_are_refused_at_once(folders: dict[str, Folder]) -> None:
    with Table.open(folders["fp8"][0], device="cuda") as table:
        with pytest.raises(RowIdError, match=r"row_ids\[1\]"):
            table.lookup(torch.tensor([1, SPEC.num_rows]))
        with pytest.raises(TokenError):
            table.embed(torch.tensor([SPEC.vocab_size]), torch.tensor([0, 1], dtype=torch.int32))
        table.check()


def test_check_ids_raises_in_the_call(folders: dict[str, Folder]) -> None:
    settings = Settings(check_ids=True)
    with Table.open(folders["fp8"][0], device="cuda", settings=settings) as table:
        with pytest.raises(RowIdError):
            table.lookup(torch.tensor([SPEC.num_rows], device="cuda"))
        table.lookup(torch.tensor([0], device="cuda"))


def test_buffers_on_another_device_are_refused(folders: dict[str, Folder]) -> None:
    with Table.open(folders["fp8"][0], placement="device", device=None) as table:
        assert table.device == torch.device("cuda", torch.cuda.current_device())
        out = torch.empty(1, SPEC.row_dim, dtype=torch.bfloat16)
        with pytest.raises(ArgumentError, match=r"out: expected .* on cuda"):
            table.lookup(torch.tensor([1], device="cuda"), out=out)
    with Table.open(folders["fp8"][0]) as table:
        assert table.device == torch.device("cpu")
        with pytest.raises(ArgumentError, match="row_ids: expected a tensor on cpu"):
            table.lookup(torch.tensor([1], device="cuda"))


@pytest.mark.behaviour(9)
def test_a_compiled_model_sees_no_table(folders: dict[str, Folder]) -> None:
    """Behaviour 9: one opaque operation, in a compiled graph and in a captured one."""
    path, encoded, codec = folders["fp8"]
    with Table.open(path, placement="device=9000,host", device="cuda") as table:

        @torch.compile(fullgraph=True)
        def model(
            token_ids: torch.Tensor, starts: torch.Tensor, history: torch.Tensor
        ) -> torch.Tensor:
            return table.embed(token_ids, starts, history) * 2

        batch = random_batch(SPEC, [6])
        expected = expected_embedding(SPEC, codec, encoded, batch) * 2
        assert torch.equal(model(*on_gpu(batch)).cpu(), expected)
    torch.compiler.reset()


def test_streams_and_threads(folders: dict[str, Folder]) -> None:
    path, encoded, codec = folders["nvfp4"]
    wrong: list[str] = []
    with Table.open(path, placement="device=5000,host=5000,disk", device="cuda",
                    settings=Settings(host_gather_rows=8)) as table:  # fmt: skip

        def read(seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            with torch.cuda.stream(torch.cuda.Stream()):
                for turn in range(20):
                    row_ids = torch.randint(-1, SPEC.num_rows, (333,), generator=generator)
                    ids = row_ids.cuda() if turn % 2 else row_ids
                    if not same_bits(
                        table.lookup(ids).cpu(), expected_rows(codec, encoded, row_ids)
                    ):
                        wrong.append("a wrong row")

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert wrong == []


def test_device_auto_leaves_caches_and_reserve() -> None:
    spec = big_spec(2_000_000)
    free, total = torch.cuda.mem_get_info()
    reserve = min(total * 8 // 100, 4 << 30)
    kv_bytes = free - reserve - 100 * MIB
    table = Table.empty(spec, Codec("fp8", 160, 1.0), placement="device=auto,host",
                        kv_bytes=kv_bytes, device="cuda")  # fmt: skip
    table.materialize()
    assert abs(table.placement.extents[0].nbytes - 100 * MIB) < 64 * MIB
    assert table.placement.extents[1].num_rows > 0
    table.close()


def test_shards_may_lie_on_the_device(folders: dict[str, Folder]) -> None:
    _, encoded, codec = folders["nvfp4"]
    table = Table.empty(SPEC, codec, placement="device=9000,host", device="cuda")
    codes, scales = encoded[:, :16].cuda(), encoded[:, 16:].cuda()
    table.load_shard(0, codes, scales)
    table.finish_loading()
    row_ids = torch.arange(SPEC.num_rows)
    assert same_bits(table.lookup(row_ids.cuda()).cpu(), expected_rows(codec, encoded, row_ids))
    table.close()


@pytest.mark.behaviour(14)
def test_opening_tells_each_tiers_rows_and_bytes(
    folders: dict[str, Folder], caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 14: the GPU's tiers are reported like the others."""
    with caplog.at_level(logging.INFO, "gramary"):
        Table.open(folders["fp8"][0], placement="device=4KiB,host=auto,disk", device="cuda").close()
    assert any(line.startswith("device           128 rows    4.0 KiB") for line in caplog.messages)


@pytest.mark.behaviour(27)
@pytest.mark.parametrize("placement", ["device", "host", f"device={(1 << 32) + 160}B,host"])
def test_rows_beyond_the_borders(placement: str) -> None:
    """Behaviour 27: byte and element offsets 2^31 and 2^32 in device and host rows."""
    with big_table(27_200_000, placement=placement) as table:
        borders = {border // 160 + step for border in (2**31, 2**32) for step in (-1, 0, 1)}
        wanted = sorted({0, table.spec.num_rows - 1} | borders)
        row_ids = torch.tensor([row for row in wanted if row < table.spec.num_rows])
        assert int(row_ids[-1]) * 160 > 2**32
        rows = row_ids.view(-1, 1).expand(-1, 20).contiguous().view(torch.uint8).view(-1, 160)
        for row_id, row in zip(row_ids.tolist(), rows, strict=True):
            for tier in table.tiers:
                if tier.first_row <= row_id < tier.end_row:
                    tier.write(row_id, row.view(1, 160))
        for ids in (row_ids.cuda(), row_ids):
            assert same_bits(table.lookup(ids, dtype=torch.uint8).cpu(), rows)


def fill_device_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has device 0 say that 3 GiB are free: to fill it would starve tests that run beside this."""
    real = torch.cuda.mem_get_info

    def mem_get_info(device: torch.device | int | None = None) -> tuple[int, int]:
        index = torch.cuda.current_device() if device is None else torch.device(device).index
        free, total = real(device)
        return (free, total) if index else (3 << 30, total)

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)


@pytest.mark.two_gpus
@pytest.mark.behaviour(12)
def test_the_tables_own_device_counts(
    folders: dict[str, Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 12: a table on device 1 is planned, built and read there, whatever is current."""
    path, encoded, codec = folders["fp8"]
    fill_device_0(monkeypatch)
    batch = random_batch(SPEC, [20])
    with (
        torch.cuda.device(0),
        Table.open(path, placement="device=auto,host=auto", device="cuda:1") as table,
    ):
        # Device 0 is full: planned by it, no row would fit above the reserve.
        assert table.placement.extents[0].num_rows == SPEC.num_rows
        rows = table.embed(*on_gpu(batch, "cuda:1"))
        assert rows.device == torch.device("cuda", 1)
        assert same_bits(rows.cpu(), expected_embedding(SPEC, codec, encoded, batch))
        assert same_bits(table.embed(*batch).cpu(), rows.cpu())
        assert torch.cuda.current_device() == 0
        with pytest.raises(ArgumentError, match="cuda:1"):
            table.lookup(torch.tensor([1], device="cuda:0"))


@pytest.mark.behaviour(12)
def test_the_table_asks_its_own_device(
    folders: dict[str, Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 12: free memory is asked of the device that the table is on."""
    asked: list[torch.device] = []
    real = torch.cuda.mem_get_info

    def mem_get_info(device: torch.device) -> tuple[int, int]:
        asked.append(device)
        return real(device)

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    Table.open(folders["fp8"][0], placement="device=auto,host", device=last).close()
    assert asked
    assert set(asked) == {last}
