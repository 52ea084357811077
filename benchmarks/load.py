"""Opening a table in host memory: peak resident memory, and time, against loading its tensors.

The checkpoint has the row width of the real model and 2 million rows in 16 shards, in fp8.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from benchmarks.harness import Benchmark, Case, MeasuredCase, main
from benchmarks.machine import ROOT
from benchmarks.peak import measure_peak_bytes
from benchmarks.timers import CpuTimer

NUM_SHARDS = 16
ROW_DIM = 160


def open_table(path: str) -> object:
    """Opens the table in host memory."""
    from gramary import Table

    return Table.open(path, placement="host")


def concatenate_shards(path: str) -> torch.Tensor:
    """Loads every shard as a tensor and joins them, as `nn.Embedding` loaders do."""
    shards = {}
    for file in sorted(Path(path).glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                if "ngram_embedding.shard_" in name:
                    number = int(name.rsplit("shard_", 1)[1].split(".")[0])
                    shards[number] = opened.get_tensor(name)
    return torch.cat([shards[number].view(torch.uint8) for number in sorted(shards)])


def make_checkpoint(folder: Path, smoke: bool) -> Path:
    """Writes the checkpoint and returns its folder."""
    sys.path.append(str(ROOT / "tools"))
    from make_model import make_model

    return make_model(
        folder,
        codec="fp8",
        num_shards=NUM_SHARDS,
        ple_embed_dim=16 * ROW_DIM,
        ngram_vocab_size_base=10_000 if smoke else 125_000,
    )


def build(smoke: bool) -> Iterator[Case | MeasuredCase]:
    """Yields the memory case, then the time case."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(make_checkpoint(Path(folder) / "model", smoke))
        table_bytes = concatenate_shards(path).nbytes
        parameters = {"codec": "fp8", "row_bytes": ROW_DIM, "table_bytes": table_bytes}
        parameters["num_shards"] = NUM_SHARDS
        yield _memory_case(path, table_bytes, parameters, repeats=1 if smoke else 5)
        yield Case(
            name="time to host memory",
            parameters=parameters,
            candidates={
                "gramary Table.open": lambda: open_table(path).close(),  # type: ignore[attr-defined]
                "safetensors + torch.cat": lambda: concatenate_shards(path),
            },
            baseline="safetensors + torch.cat",
            check=lambda: _compare(path),
            checked="all encoded rows are equal",
            moved_bytes=2 * table_bytes,
            cache_note="files in the page cache; memory is allocated and freed in each call",
            timer=CpuTimer(once=True),
            num_samples=2 if smoke else 9,
        )


def _memory_case(
    path: str, table_bytes: int, parameters: dict[str, object], repeats: int
) -> MeasuredCase:
    def peaks(function: str) -> list[int]:
        target = f"benchmarks.load:{function}"
        return [measure_peak_bytes(target, path=path) for _ in range(repeats)]

    allowed = table_bytes + 2 * (table_bytes // NUM_SHARDS)
    return MeasuredCase(
        name="peak memory beyond the imports",
        parameters=parameters,
        samples={
            "allowed (rows + two shards)": [allowed],
            "gramary Table.open": peaks("open_table"),
            "safetensors + torch.cat": peaks("concatenate_shards"),
        },
        baseline="allowed (rows + two shards)",
        check=lambda: _compare(path),
        checked="all encoded rows are equal",
        moved_bytes=table_bytes,
        cache_note="a fresh process for each sample",
        targets={"gramary Table.open": 1.0},
    )


def _compare(path: str) -> int:
    from gramary import Table

    expected = concatenate_shards(path)
    with Table.open(path, placement="host") as table:
        rows = table.lookup(torch.arange(table.spec.num_rows), dtype=torch.uint8)
    if not torch.equal(rows, expected):
        first = int((rows != expected).any(1).nonzero()[0])
        raise AssertionError(f"encoded rows differ, first at row {first}")
    return expected.numel()


BENCHMARK = Benchmark(
    name="load",
    build=build,
    sources=[
        "src/gramary/table.py",
        "src/gramary/storage/row_store.py",
        "src/gramary/files/stream.py",
    ],
)

if __name__ == "__main__":
    main(BENCHMARK)
