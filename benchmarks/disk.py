"""Rows from disk: cold against the bare device at the same depth, warm against plain preads.

    python -m benchmarks.disk [--table-gib 4] [--folder DIR] [--out FILE] [--smoke]

The table is written into DIR (default: the system's temporary folder; it must be on the storage to
be measured) and removed at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.disk_files import (
    byte_offsets,
    describe_table,
    distinct_blocks,
    drop_cache,
    fill_cache,
    main,
    write_random_file,
)
from benchmarks.harness import Benchmark, Case
from benchmarks.receipts.targets import Target
from benchmarks.timers import CpuTimer
from gramary.errors import UnsupportedError
from gramary.files.layout import RowLayout, TableSource
from gramary.files.pack import build_pack, open_pack
from gramary.native.raw_disk import lane_shape, read_blocks_raw, read_rows_raw
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier

NUM_COLD_ROWS = 131_072
# Share of distinct rows in a prefill chunk of 8192 tokens of real text.
DISTINCT_SHARE = 0.55
# 85 % of the bare device's rate.
COLD_TARGET = 1 / 0.85
# Before each cold sample: storage that is lent lets bursts run faster than what follows them.
PAUSE_S = 0.3
BLOCK_BYTES = 4096
# Threads of the reader without io_uring, one read in flight in each.
PREAD_SHAPE = (32, 1)


def build(smoke: bool, table_gib: float = 4.0, folder: str | None = None) -> Iterator[Case]:
    """Yields the cold cases, then the warm ones, for a checkpoint's layout and for a pack's."""
    with tempfile.TemporaryDirectory(prefix="gramary-bench-", dir=folder) as scratch:
        path = Path(scratch) / "table.bin"
        write_random_file(
            path, 64 << 20 if smoke else int(table_gib * 2**30) // BLOCK_BYTES * BLOCK_BYTES
        )
        table = describe_table(path)
        yield from _cases(table, "checkpoint", smoke)
        build_pack(table, path.with_suffix(".pack"))
        yield from _cases(open_pack(path.with_suffix(".pack")), "pack", smoke)


def _cases(source: TableSource, kind: str, smoke: bool) -> Iterator[Case]:
    layout = source.layout
    generator = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.randint, 0, layout.num_rows, generator=generator)
    tiers = _open_tiers(layout)
    yield _cold_case(tiers, layout, kind, draw((8192 if smoke else NUM_COLD_ROWS,)), smoke)
    fill_cache(layout.files[0].path)
    for num_rows, limit_us in ((16, 25), (256, 200)):
        batches = [draw((num_rows,)) for _ in range(100)]
        case = _warm_case(tiers, layout, kind, batches, 3 if smoke else 15, {})
        yield dataclasses.replace(case, targets={next(iter(tiers)): Target(limit_us, of="median")})
    row_ids = _draw_with_repeats(layout.num_rows, NUM_COLD_ROWS, generator)
    num_blocks = len(distinct_blocks(layout, row_ids))
    facts = {"distinct_rows": DISTINCT_SHARE, "distinct_blocks": num_blocks / NUM_COLD_ROWS}
    yield _warm_case(tiers, layout, kind, [row_ids], 1 if smoke else 5, facts)
    for tier in tiers.values():
        tier.close()


def _open_tiers(layout: RowLayout) -> dict[str, DiskTier]:
    """Opens a table with each reader that this machine allows, the one that it prefers first."""
    tiers = {}
    for name in ("io_uring", "pread"):
        with contextlib.suppress(UnsupportedError):
            settings = Settings(disk_reader=name)
            tiers[f"gramary {name}"] = DiskTier(layout, 0, layout.num_rows, settings)
    return tiers


def _cold_case(
    tiers: dict[str, DiskTier], layout: RowLayout, kind: str, row_ids: torch.Tensor, smoke: bool
) -> Case:
    path = layout.files[0].path
    out = torch.empty(len(row_ids), layout.row_bytes, dtype=torch.uint8)
    blocks = distinct_blocks(layout, row_ids)
    preferred = next(iter(tiers))
    engine = preferred.removeprefix("gramary ")
    num_threads, depth = lane_shape() if engine == "io_uring" else PREAD_SHAPE
    candidates: dict[str, Callable[[], object]] = {
        name: functools.partial(tier.gather, row_ids, out) for name, tier in tiers.items()
    }
    candidates[f"bare {engine}"] = functools.partial(
        read_blocks_raw, path, blocks, BLOCK_BYTES, num_threads, depth
    )

    def start_cold() -> None:
        drop_cache(path)
        time.sleep(0 if smoke else PAUSE_S)

    parameters = {
        "rows": len(row_ids),
        "distinct_blocks": len(blocks),
        "file_bytes": layout.files[0].size,
        "threads": num_threads,
        "depth": num_threads * depth,
        **_ask_fio(path, engine, num_threads, depth, smoke),
    }
    return Case(
        name=f"{kind}, cold, {len(row_ids)} random rows",
        parameters=parameters,
        candidates=candidates,
        baseline=f"bare {engine}",
        check=lambda: _compare(tiers, row_ids, start_cold),
        checked="rows read cold are those that one pread each gives",
        moved_bytes=BLOCK_BYTES * len(blocks),
        cache="cold",
        cache_note="the file's pages dropped before every sample; O_DIRECT; blocks in their order",
        before=start_cold,
        targets={preferred: COLD_TARGET},
        timer=CpuTimer(once=True),
        num_samples=3 if smoke else 5,
    )


def _warm_case(
    tiers: dict[str, DiskTier],
    layout: RowLayout,
    kind: str,
    batches: list[torch.Tensor],
    num_samples: int,
    facts: dict[str, float],
) -> Case:
    path, num_rows = layout.files[0].path, len(batches[0])
    out = torch.empty(num_rows, layout.row_bytes, dtype=torch.uint8)
    candidates: dict[str, Callable[[], object]] = {}
    for name, tier in tiers.items():
        turns = itertools.cycle(batches)
        gather = tier.gather
        candidates[name] = lambda gather=gather, turns=turns: gather(next(turns), out)
    all_offsets = [byte_offsets(layout, batch) for batch in batches]
    offsets = itertools.cycle(all_offsets)
    candidates["one pread a row"] = lambda: read_rows_raw(path, next(offsets), out)
    if kind == "pack":
        # Blocks that are checked have to be read whole: the least that it can take.
        whole = torch.empty(num_rows, BLOCK_BYTES, dtype=torch.uint8)
        blocks = itertools.cycle([at // BLOCK_BYTES * BLOCK_BYTES for at in all_offsets])
        candidates["one pread a block, unchecked"] = lambda: read_rows_raw(
            path, next(blocks), whole
        )

    def touch() -> None:
        # A kernel that gives idle pages back would make some rows cold again.
        for batch_offsets in all_offsets:
            read_rows_raw(path, batch_offsets, out)

    return Case(
        name=f"{kind}, warm, {num_rows} {'random rows' if len(batches) > 1 else 'lookups'}",
        parameters={"rows": num_rows, "batches": len(batches), **facts},
        candidates=candidates,
        baseline="one pread a row",
        check=lambda: _compare(tiers, batches[0]),
        checked="rows are those that one pread each gives",
        moved_bytes=num_rows * layout.row_bytes,
        cache_note="the whole file read from start to end, and all rows again before every sample",
        before=touch,
        num_samples=num_samples,
    )


def _draw_with_repeats(num_rows: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draws rows of which a given share is distinct, the repeats by Zipf's law."""
    num_distinct = int(count * DISTINCT_SHARE)
    distinct = torch.randperm(num_rows, generator=generator)[:num_distinct]
    weights = 1.0 / torch.arange(1, num_distinct + 1, dtype=torch.float64)
    repeats = torch.multinomial(
        weights, count - num_distinct, replacement=True, generator=generator
    )
    row_ids = torch.cat([distinct, distinct[repeats]])
    return row_ids[torch.randperm(count, generator=generator)]


def _compare(
    tiers: dict[str, DiskTier], row_ids: torch.Tensor, before: Callable[[], None] | None = None
) -> int:
    """Compares what every tier gathers with one pread a row; returns how many bytes."""
    found = {}
    for name, tier in tiers.items():
        if before is not None:
            before()
        found[name] = torch.empty(len(row_ids), tier.row_bytes, dtype=torch.uint8)
        tier.gather(row_ids, found[name])
    layout = next(iter(tiers.values())).layout
    path = layout.files[0].path
    if before is not None:
        # One pread a row from cold storage would take longer than all else.
        fill_cache(path)
    expected = torch.empty(len(row_ids), layout.row_bytes, dtype=torch.uint8)
    read_rows_raw(path, byte_offsets(layout, row_ids), expected)
    for name, rows in found.items():
        if not torch.equal(rows, expected):
            row = int((rows != expected).any(1).nonzero()[0])
            raise AssertionError(f"{name}: row {int(row_ids[row])} is not what pread gives")
    return expected.numel() * len(found)


def _ask_fio(path: str, engine: str, num_threads: int, depth: int, smoke: bool) -> dict[str, float]:
    """Returns the rate that fio reaches at the same depth, where fio is installed."""
    if smoke or shutil.which("fio") is None:
        return {}
    drop_cache(path)
    command = ["fio", "--name=random", f"--filename={path}", "--rw=randread", "--bs=4k"]
    command += ["--direct=1", f"--iodepth={depth}", f"--numjobs={num_threads}", "--readonly"]
    if engine == "io_uring":
        command += ["--ioengine=io_uring", "--registerfiles=1", "--fixedbufs=1"]
    else:
        command += ["--ioengine=psync", "--thread"]
    command += ["--group_reporting"]
    command += ["--runtime=3", "--time_based", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {}
    result = json.loads(done.stdout[done.stdout.index("{") :])
    return {"fio_blocks_per_s": round(result["jobs"][0]["read"]["iops"])}


BENCHMARK = Benchmark(
    name="disk",
    build=build,
    sources=(
        "benchmarks/disk*.py",
        "csrc/disk/*",
        "src/gramary/native/disk.py",
        "src/gramary/files/pack/*",
    ),
)


if __name__ == "__main__":
    main(BENCHMARK)
