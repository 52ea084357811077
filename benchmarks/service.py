"""The row service alone, without a GPU: from a number in shared memory to its rows' flag.

    python -m benchmarks.service

Stream lane: a thread rings and spins for the flag, as a GPU does over the bus. Host lane: from the
announcement of a prompt chunk to its flag, hashing included. Each with 1, 2, ... threads that may
gather; the last is what a connector takes by default.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.harness import Benchmark, Case, MeasuredCase, main
from gramary import Batch, HashSpec, Settings, Table
from gramary.machine.memory import usable_cpus
from gramary.model.codecs import Codec
from gramary.native.offload import time_answer
from gramary.offload.memory.region import Region
from gramary.offload.service.base import ThreadService, num_service_threads
from gramary.offload.service.stores import store_arguments
from gramary.offload.setup import ring_shape

CODEC = Codec("fp8", 160, 2.0**-12)
HEADS = 16
CACHE_NOTE = "rows in memory far larger than the caches; uniform random ids, new ones every time"


def make_table(base: int) -> Table:
    """Returns a host table of the real row's width with about 16 * base random rows."""
    spec = HashSpec.from_config(
        {
            "vocab_size": 248320, "hidden_size": 2560, "ple_embed_dim": 2560, "ngram_size": 3,
            "heads_per_ngram": 8, "ple_layer_ids": [2], "num_hidden_layers": 4,
            "ngram_vocab_size_base": base, "make_ngram_vocab_size_divisible_by": 128,
            "eos_token_id": 248044,
        }
    )  # fmt: skip
    table = Table.empty(spec, CODEC, placement="host", device="cpu", num_shards=1)
    rows = torch.randint(256, (spec.num_rows, CODEC.row_bytes), dtype=torch.uint8)
    table.load_shard(0, rows.view(torch.float8_e4m3fn))
    table.finish_loading()
    return table


class Rig:
    """A region and its service, asked without a connector."""

    def __init__(self, table: Table, max_tokens: int, num_threads: int) -> None:
        self.table = table
        self.region = Region(ring_shape([table], max_tokens, 1))
        settings = Settings(poll="spin", num_threads=num_threads)
        self.service = ThreadService(self.region, (store_arguments(table),), settings)
        self.service.start()
        self.generator = torch.Generator().manual_seed(num_threads)
        self.numbers = {"stream": itertools.count(1), "host": itertools.count(1)}

    def stream_us(self, num_tokens: int) -> float:
        """Returns the time from a stream request's number to its flag."""
        region, slot = self.region, self.region.ring.stream_slots[0]
        number = next(self.numbers["stream"])
        ids = torch.randint(self.table.spec.num_rows, (num_tokens, HEADS), generator=self.generator)
        region.ids(slot, 0, num_tokens).copy_(ids)
        region.request_slot(slot, number, num_tokens)
        header, ready = region.address + slot.header, region.ready_address(slot, 0)
        nanoseconds = time_answer(header, ready, number)
        if number % 64 == 1:
            self._require(region.rows(slot, 0, num_tokens), ids)
        return nanoseconds / 1e3

    def host_us(self, num_tokens: int) -> float:
        """Returns the time from a host-lane request's announcement to its flag."""
        region, number = self.region, next(self.numbers["host"])
        slot = region.ring.host_slot(number)
        vocab_size = self.table.spec.vocab_size
        prompt = torch.randint(vocab_size, (num_tokens,), generator=self.generator)
        batch = Batch.from_prompts(self.table.spec, [prompt], [0], [num_tokens])
        region.write_inputs(
            number,
            batch.token_ids,
            batch.query_start_loc,
            batch.history,
            vocab_size,
        )
        began = time.perf_counter_ns()
        region.announce(number)
        if not region.wait_ready(slot, 0, 10):
            raise AssertionError("no answer within 10 s")
        took_us = (time.perf_counter_ns() - began) / 1e3
        region.clear_ready(slot, 0)
        if number % 16 == 1:
            self._require(region.rows(slot, 0, num_tokens), region.ids(slot, 0, num_tokens))
        region.release(slot, number)
        return took_us

    def close(self) -> None:
        """Ends the service and gives the memory back."""
        self.service.stop()
        self.region.close()

    def _require(self, rows: torch.Tensor, ids: torch.Tensor) -> None:
        expected = self.table.lookup(ids.flatten(), dtype=torch.uint8)
        if not torch.equal(rows, expected):
            raise AssertionError("rows differ from the table's own")


def thread_counts() -> list[int]:
    """Returns how many threads to try: powers of two up to the CPUs, the default last."""
    default = num_service_threads(Settings())
    counts = [n for n in (1, 2, 4, 8, 16) if n <= usable_cpus() and n != default]
    return [*counts, default]


def case(
    name: str, table: Table, num_tokens: int, measure: Callable[[Rig, int], float], repeats: int
) -> MeasuredCase:
    """Returns a measured case: every number of threads, in turns; one service at a time."""
    samples: dict[str, list[float]] = {f"{count} thread(s)": [] for count in thread_counts()}
    for _ in range(3):
        for count, key in zip(thread_counts(), samples, strict=True):
            with contextlib.closing(Rig(table, num_tokens, count)) as rig:
                took = [round(measure(rig, num_tokens), 3) for _ in range(8 + repeats)]
            samples[key] += took[8:]
    return MeasuredCase(
        name=f"{name}, {num_tokens} tokens",
        parameters={"tokens": num_tokens, "rows": num_tokens * HEADS, "codec": "fp8"},
        samples=samples,
        baseline=next(iter(samples)),
        check=lambda: num_tokens * HEADS * CODEC.row_bytes,
        checked="rows equal the table's own lookup, sampled",
        moved_bytes=2 * num_tokens * HEADS * CODEC.row_bytes,
        cache="warm",
        cache_note=CACHE_NOTE,
        unit="us",
        timer_name="cpu",
    )


def repeats_case(table: Table, num_tokens: int) -> Case:
    """Returns what it takes to find a prompt's repeated rows, against copying them again."""
    count = num_tokens * HEADS
    generator = torch.Generator().manual_seed(1)
    # As in real text, 55 % of a chunk's rows differ.
    some = torch.randint(table.spec.num_rows, (count * 55 // 100,), generator=generator)
    ids = some[torch.randint(len(some), (count,), generator=generator)]
    out = torch.empty(count, CODEC.row_bytes, dtype=torch.uint8)

    def gather() -> None:
        table.lookup(ids, out=out)

    def sort() -> None:
        torch.sort(ids)

    def check() -> int:
        gather()
        if not torch.equal(out[:64], table.lookup(ids[:64], dtype=torch.uint8)):
            raise AssertionError("rows differ from the table's own")
        return 64

    return Case(
        name=f"finding repeated rows, {num_tokens} tokens",
        parameters={"tokens": num_tokens, "rows": count, "distinct_percent": 55},
        candidates={"copying all rows": gather, "sorting row ids": sort},
        baseline="copying all rows",
        check=check,
        checked="rows equal the table's own lookup, sampled",
        moved_bytes=2 * count * CODEC.row_bytes,
        cache_note="rows in memory; the same ids every time",
    )


def build(smoke: bool) -> Iterator[Case | MeasuredCase]:
    """Yields the stream lane by batch, the host lane, and what finding repeats would cost."""
    base, repeats = (1000, 4) if smoke else (125_000, 64)
    with make_table(base) as table:
        for num_tokens in (1, 4) if smoke else (1, 16, 64, 256):
            yield case("stream lane", table, num_tokens, Rig.stream_us, repeats)
        yield case("host lane", table, 64 if smoke else 8192, Rig.host_us, repeats // 4)
        yield repeats_case(table, 64 if smoke else 8192)


BENCHMARK = Benchmark(
    name="service",
    build=build,
    sources=[
        "csrc/offload/*", "csrc/rows/*", "csrc/hash/*", "src/gramary/offload/*.py",
        "benchmarks/service.py",
    ],
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
