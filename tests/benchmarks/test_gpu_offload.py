"""The offload's GPU benchmark, its kernels interpreted: small cases, every check, every target."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from abilities import ask_for
from cuda_side_stage import CallingThread, use_cuda_side

from benchmarks import harness
from benchmarks.gpu_full_table import full_spec
from benchmarks.offload_decode import Way, decode_case, ways_of
from benchmarks.offload_prefill import Prefill
from benchmarks.offload_prompt import prompt_case
from benchmarks.offload_tables import OffloadTables, settings
from benchmarks.stand_in import StageSize
from benchmarks.table_folder import formula_shards, write_table_folder
from benchmarks.timers import CpuTimer
from gramary import Table

SIZE = StageSize("cpu", hidden_size=32, num_layers=2, chunk_tokens=6, num_chunks=3)
ONCE = {"timer": CpuTimer(once=True), "num_samples": 1}


@pytest.fixture(autouse=True)
def cuda_side(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for("triton")
    use_cuda_side(monkeypatch, CallingThread())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[OffloadTables]:
    spec = full_spec(500)
    folder = write_table_folder(tmp_path, spec, formula_shards(spec, 3, "cpu"))

    def open_table(placement: str) -> Table:
        return Table.open(folder, placement=placement, settings=settings())

    # Rows on a device need one; its kernels read host rows here.
    with open_table("host") as host, open_table("disk") as disk:
        yield OffloadTables(host, host, disk)


@pytest.mark.parametrize("num_requests", [1, 64])
def test_a_decode_step(tables: OffloadTables, num_requests: int) -> None:
    ways = ways_of(tables, num_requests)
    with decode_case(ways, num_requests, tables.parameters()) as case:
        assert case.check() == 3 * num_requests * 2560
    limit = {1: 15, 64: 25}[num_requests]
    promised = {name: target.at_most for name, target in case.targets.items()}
    disk = {"disk, doorbell": 45} if num_requests == 1 else {}
    assert promised == {"host, read by the GPU": limit, "host, doorbell": limit, **disk}
    assert {target.of for target in case.targets.values()} == {"difference"}


def test_a_way_ends_with_its_block_also_by_an_error(tables: OffloadTables) -> None:
    from gramary.offload.cuda import take

    before, seen = take.COPIED_FROM_ROWS, []
    with contextlib.suppress(RuntimeError), Way(tables.host, is_copied=True).chosen():
        seen.append(take.COPIED_FROM_ROWS)
        raise RuntimeError("no capture")
    assert seen == [1]
    assert before == take.COPIED_FROM_ROWS != 1


def test_a_prompt_from_its_request_to_its_rows(tables: OffloadTables) -> None:
    with prompt_case(tables.host, 24, tables.parameters()) as case:
        measured = harness.measure(dataclasses.replace(case, **ONCE))
    assert measured["name"] == "request to decoded rows, 24 tokens"
    assert measured["check"]["compared"] == 24 * 2560
    assert measured["targets"]["connector, host lane"]["of"] == "median"


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_prefill(tables: OffloadTables, tier: str) -> None:
    prefill = Prefill(SIZE, getattr(tables, tier))
    measured = harness.measure(prefill.case(f"idle, {tier}", tables.parameters(), repeats=2))
    outputs = SIZE.num_chunks * SIZE.chunk_tokens * 4 * SIZE.hidden_size
    assert measured["check"]["compared"] == 2 * prefill.rows.numel() + outputs
    samples = [summary["samples"] for summary in measured["candidates"].values()]
    assert [len(of) for of in samples] == [2 * (SIZE.num_chunks - 1)] * 2
    assert min(map(min, samples)) > 0, "every chunk waits between two events"
    assert measured["targets"]["early requests on"]["of"] == "maximum"


def test_a_row_that_differs_is_found(
    tables: OffloadTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = Prefill(SIZE, tables.host)
    embed = Table.embed
    monkeypatch.setattr(Table, "embed", lambda *given, **options: -embed(*given, **options))
    with pytest.raises(AssertionError, match="rows differ: early requests off"):
        prefill.check()
