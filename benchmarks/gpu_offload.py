"""Rows through a connector on a GPU: prefill with early requests on and off, decode in a graph.

    python -m benchmarks.gpu_offload

Prefill: a stand-in stage, 48 dense layers of the real width (2560 x 4 streams, about 1 ms each at
8192 tokens) with the real PLE layer behind the first (`offload_prefill.py`). Decode: one step
(request and wait) captured, 20 steps a graph, each with tokens of its own (`offload_decode.py`).
`overlap.py --device cuda --placement disk --cold` has the chunks whose rows no cache holds.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Iterator

from benchmarks.harness import Benchmark, Case, MeasuredCase, main
from benchmarks.offload_decode import decode_case, ways_of
from benchmarks.offload_prefill import Prefill
from benchmarks.offload_prompt import prompt_case
from benchmarks.offload_tables import open_tables
from benchmarks.stand_in import REAL_SIZE
from gramary.machine.memory import usable_cpus

SMOKE = dataclasses.replace(REAL_SIZE, num_layers=2, chunk_tokens=256, num_chunks=3)


def build(smoke: bool) -> Iterator[Case | MeasuredCase]:
    """Yields decode, request-to-rows and prefill, the disk's last."""
    print(f"{platform.release()}, {os.cpu_count()} CPUs, {usable_cpus()} usable")
    base, size, repeats = (10_000, SMOKE, 1) if smoke else (1_000_000, REAL_SIZE, 5)
    with open_tables(base, size.device) as tables:
        parameters = tables.parameters()
        for num_requests in (1, 64):
            ways = ways_of(tables, num_requests)
            with decode_case(ways, num_requests, parameters) as case:
                yield case
        with prompt_case(tables.host, size.chunk_tokens, parameters) as case:
            yield case
        for name, table in (("host", tables.host), ("disk", tables.disk)):
            prefill = Prefill(size, table)
            yield prefill.case(f"idle a chunk, table on {name}", parameters, repeats)


BENCHMARK = Benchmark(
    name="gpu_offload",
    build=build,
    sources=[
        "src/gramary/offload/*.py", "src/gramary/offload/cuda/*.py", "csrc/offload/*",
        "benchmarks/gpu_offload.py", "benchmarks/offload_*.py", "benchmarks/stand_in.py",
        "benchmarks/table_folder.py",
    ],
    needs="cuda",
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
