"""The full published table (320,001,536 fp8 rows) on one GPU: device, host, and split.

    python -m benchmarks.gpu_full_table

Rows are made by a formula, loaded shard by shard, and checked at random rows against the formula.
Recorded are the pinned bytes against the rows' own, the device's peak while a table without device
rows loads, and the time to load. Needs 64 GiB of host memory and 64 GiB on the device; host memory
that grows on demand is taken at its word (GRAMARY_MEMORY_LIMIT_BYTES, default 100 GiB).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

import torch

from benchmarks.harness import Benchmark, MeasuredCase, main
from gramary import HashSpec, Table
from gramary.model.codecs import Codec, decode_rows_ref
from gramary.settings import Settings

MIB = 1 << 20
GIB = 1 << 30
NUM_SHARDS = 128
NUM_CHECKED = 65_536
STAGING_BYTES = 32 * MIB

PLACEMENTS = ("host", "device", "device=24GiB,host")

# splitmix64's odd factor, as int64.
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)


def full_spec(base: int) -> HashSpec:
    """Returns the published geometry, or one with smaller heads."""
    return HashSpec(248320, 248044, 3, 8, 160, base, 128, decoder_layer=1)


def rows_by_formula(row_ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Returns rows uint8 [n, 160] of row ids int64 [n] on their device: word j of row r is a
    multiplicative hash of 20 r + j, so that no two rows are equal."""
    words = torch.arange(20, device=row_ids.device) + (row_ids * 20).view(-1, 1)
    words = torch.mul(words, _FACTOR, out=out)
    words ^= words >> 29
    return words.view(torch.uint8)


def load_by_formula(table: Table, device: str) -> None:
    """Loads every shard with rows made on `device`."""
    each = -(-table.spec.num_rows // NUM_SHARDS)
    buffer = torch.empty(each, 20, dtype=torch.int64, device=device)
    for index in range(NUM_SHARDS):
        first, end = index * each, min((index + 1) * each, table.spec.num_rows)
        row_ids = torch.arange(first, end, device=device)
        table.load_shard(index, rows_by_formula(row_ids, buffer[: end - first]))
    table.finish_loading()


@dataclasses.dataclass
class Loaded:
    """What opening one placement took.

    Attributes:
        rows_bytes: bytes of the host rows, 0 without any.
        pinned_bytes: bytes registered with CUDA.
        peak_bytes: rise of the device's peak while loading, by torch's allocator.
        used_bytes: device memory that was gone after loading, by the driver.
        seconds: time from the first shard to the last.
        num_checked: rows that were compared with the formula.
    """

    rows_bytes: int
    pinned_bytes: int
    peak_bytes: int
    used_bytes: int
    seconds: float
    num_checked: int


def open_and_check(placement: str, base: int) -> Loaded:
    """Opens one placement, loads it, compares random rows, and closes it."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free_before = torch.cuda.mem_get_info()[0]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    table = Table.empty(
        full_spec(base),
        Codec("fp8", 160, 2.0**-12),
        placement=placement,
        device="cuda",
        num_shards=NUM_SHARDS,
        settings=Settings.from_env(memory_limit_bytes=100 * GIB),
    )
    with table:
        started = time.perf_counter()
        # The rows of an all-host table are made on the CPU, so that the device's peak is its own.
        load_by_formula(table, "cpu" if placement == "host" else "cuda")
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        peak = torch.cuda.max_memory_allocated() - before
        torch.cuda.empty_cache()
        used = free_before - torch.cuda.mem_get_info()[0]
        host = table.stats().tier("host")
        num_checked = check_rows(table)
        print(f"{placement}: loaded in {seconds:.1f} s; {dict(host.facts) if host else ''}")
        return Loaded(
            host.nbytes if host else 0,
            int(host.facts["locked_bytes"]) if host else 0,
            peak,
            used,
            seconds,
            num_checked,
        )


def check_rows(table: Table) -> int:
    """Compares random rows, the first and the last with the formula; returns how many."""
    generator = torch.Generator().manual_seed(7)
    row_ids = torch.randint(0, table.spec.num_rows, (NUM_CHECKED,), generator=generator)
    row_ids[:2] = torch.tensor([0, table.spec.num_rows - 1])
    expected = rows_by_formula(row_ids.cuda())
    for ids in (row_ids.cuda(), row_ids):
        if not torch.equal(table.lookup(ids, dtype=torch.uint8), expected):
            raise AssertionError("encoded rows differ from the formula")
        decoded = decode_rows_ref(table.codec, expected).view(torch.int16)
        if not torch.equal(table.lookup(ids).view(torch.int16), decoded):
            raise AssertionError("decoded rows differ from the reference")
    table.check()
    return 2 * NUM_CHECKED


def build(smoke: bool) -> Iterator[MeasuredCase]:
    """Yields a case of pinned bytes, one of device memory and one of loading times."""
    base = 50_000 if smoke else 20_000_000
    loaded = {placement: open_and_check(placement, base) for placement in PLACEMENTS}
    spec = full_spec(base)
    parameters = {"rows": spec.num_rows, "row_bytes": 160, "codec": "fp8", "shards": NUM_SHARDS}
    for placement, result in loaded.items():
        if result.rows_bytes:
            yield MeasuredCase(
                name=f"pinned bytes, {placement}",
                parameters=parameters | {"placement": placement},
                samples={"rows": [result.rows_bytes], "pinned": [result.pinned_bytes]},
                baseline="rows",
                check=lambda result=result: result.num_checked,
                checked="random rows equal the formula that made them",
                moved_bytes=result.rows_bytes,
                cache_note="one load into fresh memory",
                # A page of 2 MiB at most.
                targets={"pinned": 1 + 2 * MIB / result.rows_bytes},
            )
    host = loaded["host"]
    yield MeasuredCase(
        name="device bytes while loading without device rows",
        parameters=parameters | {"placement": "host", "staging_bytes": STAGING_BYTES},
        samples={
            "staging + 64 MiB": [STAGING_BYTES + 64 * MIB],
            "peak by torch": [max(1, host.peak_bytes)],
            "gone by the driver": [max(1, host.used_bytes)],
        },
        baseline="staging + 64 MiB",
        check=lambda: host.num_checked,
        checked="random rows equal the formula that made them",
        moved_bytes=host.rows_bytes,
        cache_note="one load into fresh memory",
        # The driver's number holds its page tables for the registered memory, which no allocator
        # of this process sees.
        targets={"peak by torch": 1.0},
    )
    yield MeasuredCase(
        name="time to make and load all rows",
        parameters=parameters,
        samples={placement: [result.seconds * 1e6] for placement, result in loaded.items()},
        baseline="host",
        check=lambda: sum(result.num_checked for result in loaded.values()),
        checked="random rows equal the formula that made them, from ids on device and host",
        moved_bytes=spec.num_rows * 160,
        cache_note="rows are made by a formula: on the CPU for host, on the GPU for the others",
        unit="us",
        timer_name="cpu",
    )


BENCHMARK = Benchmark(
    name="gpu_full_table",
    build=build,
    sources=("src/gramary/table.py", "src/gramary/storage/row_store.py",
             "src/gramary/storage/allocation.py",
             "src/gramary/tiers/*.py", "src/gramary/reading/*.py", "csrc/memory/*",
             "benchmarks/gpu_full_table.py"),
    needs="cuda",
)  # fmt: skip

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(BENCHMARK)
