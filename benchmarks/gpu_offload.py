"""Rows through a connector on a GPU: prefill with early requests on and off, decode in a graph.

    python -m benchmarks.gpu_offload

Prefill: a stand-in stage, 48 dense layers of the real width (2560 x 4 streams, about 1 ms each at
8192 tokens) with the real PLE layer behind the first. Idle is the time on the compute stream
between events around the waits for the rows' flag, copy and decoding excluded, chunks 2..N.
Decode: one step (request and wait) captured, 20 steps a graph, each with tokens of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.gpu_full_table import full_spec, load_by_formula, rows_by_formula
from benchmarks.harness import Benchmark, Case, MeasuredCase, main
from benchmarks.timers import CpuTimer, CudaGraphTimer
from gramary import Batch, Connector, Table
from gramary.codecs import Codec
from gramary.layer.geometry import PLEGeometry
from gramary.layer.module import PLELayer
from gramary.machine import usable_cpus
from gramary.settings import Settings

CODEC = Codec("fp8", 160, 2.0**-12)
STREAMS, HIDDEN = 4, 2560
WIDTH = STREAMS * HIDDEN

# Rows in the page cache or in pinned memory; the table is smaller than the published one.
WARM = "rows pinned, or in the page cache; uniform random tokens, new ones for every chunk or step"


def settings(**changes: Any) -> Settings:
    """Returns the settings of the runs."""
    return Settings.from_env(memory_limit_bytes=64 << 30, **changes)


class Stage:
    """The stand-in: dense layers of the real width around the real PLE layer."""

    def __init__(self, table: Table, num_layers: int) -> None:
        generator = torch.Generator("cuda").manual_seed(0)

        def weight(*shape: int) -> torch.Tensor:
            values = torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)
            return values * 0.01

        self.table = table
        self.num_layers = num_layers
        self.down, self.up = weight(WIDTH, HIDDEN), weight(HIDDEN, WIDTH)
        geometry = PLEGeometry(table.spec, STREAMS, HIDDEN, kernel_size=4, eps=1e-6)
        self.ple = PLELayer(geometry, device="cuda")

    def forward(self, hidden: torch.Tensor, chunk: Batch, take: Callable[[], torch.Tensor]) -> None:
        """Runs one chunk; `take` gives its rows."""
        hidden = self._dense(hidden)
        tokens, starts = chunk.token_ids, chunk.query_start_loc
        hidden = self.ple(hidden, tokens, starts, rows=take(), add_residual=True)
        for _ in range(self.num_layers - 1):
            hidden = self._dense(hidden)

    def _dense(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.addmm(hidden, hidden @ self.down, self.up)


class TimedWaits:
    """A connector's streams, with events around every wait for a word."""

    def __init__(self, connector: Connector) -> None:
        self._streams = connector._side._streams  # type: ignore[attr-defined]
        connector._side._streams = self  # type: ignore[attr-defined]
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def wait(self, address: int, value: int) -> None:
        """Waits between two events."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._streams.wait(address, value)
        end.record()
        self.events.append((begin, end))

    def take_us(self) -> float:
        """Returns the time of the waits since the last call; the device has passed them."""
        events, self.events = self.events, []
        return sum(begin.elapsed_time(end) for begin, end in events) * 1e3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._streams, name)


class Prefill:
    """Chunks of one long prompt through the stage, with early requests on or off."""

    def __init__(self, table: Table, chunk_tokens: int, num_chunks: int, num_layers: int) -> None:
        self.table, self.stage = table, Stage(table, num_layers)
        generator = torch.Generator().manual_seed(1)
        prompt = torch.randint(
            table.spec.vocab_size, (chunk_tokens * num_chunks,), generator=generator
        )
        self.chunks = [
            Batch.from_prompts(table.spec, [prompt], [first], [chunk_tokens])
            for first in range(0, len(prompt), chunk_tokens)
        ]
        self.on_device = [
            Batch(c.token_ids.cuda(), c.query_start_loc.cuda(), history=c.history.cuda())
            for c in self.chunks
            if c.history is not None
        ]
        shape = (chunk_tokens, WIDTH)
        self.hidden = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        self.rows = torch.empty(
            num_chunks, chunk_tokens, table.spec.embed_dim, dtype=torch.bfloat16, device="cuda"
        )
        self.chunk_ms = 0.0

    def run(self, early: bool) -> list[float]:
        """Returns the idle time of chunks 2..N in microseconds."""
        self.rows.fill_(float("nan"))
        with Connector(
            self.table,
            max_tokens=len(self.hidden),
            prefill_early_request=early,
            settings=settings(force_doorbell=True),
        ) as connector:
            waits, idle = TimedWaits(connector), []
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            ahead = connector.request(self.chunks[0]) if early else None
            events[0].record()
            for number, chunk in enumerate(self.on_device):
                if early:
                    ticket = ahead
                    last = number + 1 == len(self.chunks)
                    ahead = None if last else connector.request(self.chunks[number + 1])
                else:
                    # The tokens are on the device since the forward before.
                    ticket = connector.request(chunk)
                assert ticket is not None

                def take(ticket: Any = ticket, out: torch.Tensor = self.rows[number]) -> Any:
                    return connector.wait(ticket, out=out)

                first = len(waits.events)
                self.stage.forward(self.hidden, chunk, take)
                idle.append((first, len(waits.events)))
            events[1].record()
            torch.cuda.synchronize()
            self.chunk_ms = events[0].elapsed_time(events[1]) / len(self.chunks)
            spans = [begin.elapsed_time(end) * 1e3 for begin, end in waits.events]
            connector.check()
        return [round(sum(spans[first:end]), 3) for first, end in idle[1:]]

    def check(self) -> int:
        """Compares every chunk's rows with the table's own call, early requests on and off."""
        for early in (False, True):
            self.run(early)
            for chunk, rows in zip(self.chunks, self.rows, strict=True):
                tokens, starts, history = chunk.token_ids, chunk.query_start_loc, chunk.history
                expected = self.table.embed(tokens, starts, history)
                if not torch.equal(rows.view(torch.int16), expected.view(torch.int16)):
                    raise AssertionError(f"rows differ, early requests {early}")
        return 2 * self.rows.numel()

    def case(self, name: str, parameters: dict[str, Any], repeats: int) -> MeasuredCase:
        """Returns the measured case: off and on in alternating order."""
        self.check()
        samples: dict[str, list[float]] = {"early requests off": [], "early requests on": []}
        for turn in range(repeats):
            for early in (False, True) if turn % 2 == 0 else (True, False):
                samples[f"early requests {'on' if early else 'off'}"] += self.run(early)
        worst = {key: round(max(values), 1) for key, values in samples.items()}
        print(f"{name}: chunk {self.chunk_ms:.1f} ms, worst idle us {worst}")
        return MeasuredCase(
            name=name,
            parameters={
                **parameters, "chunk_ms": round(self.chunk_ms, 2), "chunks": len(self.chunks),
                "tokens": len(self.hidden), "layers": self.stage.num_layers,
                "target_us": 500, "worst_on_us": worst["early requests on"],
            },
            samples=samples,
            baseline="early requests off",
            check=lambda: 2 * self.rows.numel(),
            checked="rows of every chunk equal the table's own, bit by bit, on and off",
            moved_bytes=self.rows.numel() // len(self.chunks),
            cache="warm",
            cache_note=WARM,
            unit="us",
            timer_name="cuda_events",
        )  # fmt: skip


def decode_batches(table: Table, num_requests: int, count: int) -> list[Batch]:
    """Returns decode steps of random tokens on the device."""
    generator = torch.Generator("cuda").manual_seed(num_requests)
    vocab_size = table.spec.vocab_size
    starts = torch.arange(num_requests + 1, dtype=torch.int32, device="cuda")

    def tokens(*shape: int) -> torch.Tensor:
        return torch.randint(vocab_size, shape, generator=generator, device="cuda")

    return [
        Batch(tokens(num_requests), starts, history=tokens(num_requests, 2)) for _ in range(count)
    ]


@dataclasses.dataclass(frozen=True)
class Way:
    """How a step's rows are had: from which table, and whether a slot's are copied first."""

    table: Table
    rings: bool = False
    is_copied: bool = False

    @contextlib.contextmanager
    def chosen(self) -> Iterator[None]:
        """Makes the connector take slots' rows this way for a while."""
        from gramary.offload.cuda import take

        before = take.COPIED_FROM_ROWS
        take.COPIED_FROM_ROWS = 1 if self.is_copied else before
        yield
        take.COPIED_FROM_ROWS = before


def print_service(name: str, connector: Connector) -> None:
    """Prints what a connector's service says of a request, and closes it."""
    stats = connector.stats()
    requests = stats["host_requests"] + stats["stream_requests"]
    connector.close()
    if requests:
        gather_us = stats["gathering_ns"] / requests / 1e3
        rows = stats["rows"] / requests
        print(f"  service, {name}: {requests} requests, {rows:.0f} rows in {gather_us:.1f} us each")


def decode_case(
    ways: dict[str, Way], num_requests: int, parameters: dict[str, Any]
) -> tuple[Case, contextlib.ExitStack]:
    """Returns the case of one step, and what must be closed behind it.

    Args:
        ways: by candidate; the first is the baseline.
        num_requests: requests of the step.
        parameters: for the receipt.
    """
    closing = contextlib.ExitStack()
    works, outs = {}, {}
    for name, way in ways.items():
        batches = decode_batches(way.table, num_requests, 20)
        shape = (num_requests, way.table.spec.embed_dim)
        out = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        connector = Connector(way.table, max_tokens=64, settings=settings(force_doorbell=way.rings))
        closing.callback(print_service, f"{name}, {num_requests} request(s)", connector)
        steps = itertools.cycle(batches)

        def step(
            way: Way = way, connector: Connector = connector, steps: Any = steps, out: Any = out
        ) -> None:
            with way.chosen():
                connector.wait(connector.request(next(steps)), out=out)

        works[name], outs[name] = step, out

    def check() -> int:
        for work in works.values():
            work()
        first, *others = outs.values()
        for other in others:
            if not torch.equal(first.view(torch.int16), other.view(torch.int16)):
                raise AssertionError("the ways differ")
        return first.numel() * len(others)

    case = Case(
        name=f"decode step, {num_requests} request(s)",
        parameters={**parameters, "requests": num_requests},
        candidates=works,
        baseline=next(iter(works)),
        check=check,
        checked="every way gives the same bits",
        moved_bytes=num_requests * 16 * (160 + 320),
        cache_note=WARM,
        timer=CudaGraphTimer(calls=20, replays=20),
    )
    return case, closing


def request_to_rows_case(
    table: Table, num_tokens: int, parameters: dict[str, Any]
) -> tuple[Case, Connector]:
    """Returns the case from a host batch to decoded rows, nothing hidden, and what to close."""
    connector = Connector(
        table, max_tokens=num_tokens, settings=settings(force_doorbell=True, poll="spin")
    )
    generator = torch.Generator().manual_seed(2)
    batches = []
    for _ in range(8):
        prompt = torch.randint(table.spec.vocab_size, (num_tokens,), generator=generator)
        host = Batch.from_prompts(table.spec, [prompt], [0], [num_tokens])
        device = (host.token_ids.cuda(), host.query_start_loc.cuda(), host.history.cuda())  # type: ignore[union-attr]
        batches.append((host, device))
    shape = (num_tokens, table.spec.embed_dim)
    rung, read = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    turns = {"rung": itertools.cycle(batches), "read": itertools.cycle(batches)}

    def ring() -> None:
        connector.wait(connector.request(next(turns["rung"])[0]), out=rung)
        torch.cuda.synchronize()

    def read_itself() -> None:
        table.embed(*next(turns["read"])[1], out=read)
        torch.cuda.synchronize()

    def check() -> int:
        ring()
        read_itself()
        if not torch.equal(rung.view(torch.int16), read.view(torch.int16)):
            raise AssertionError("the ways differ")
        return rung.numel()

    case = Case(
        name=f"request to decoded rows, {num_tokens} tokens",
        parameters={**parameters, "tokens": num_tokens, "target_us": 1600},
        candidates={"the GPU reads host rows": read_itself, "connector, host lane": ring},
        baseline="the GPU reads host rows",
        check=check,
        checked="both ways give the same bits",
        moved_bytes=num_tokens * 16 * (160 + 320),
        cache_note=WARM,
        timer=CpuTimer(once=True),
        num_samples=25,
    )
    return case, connector


def write_folder(path: Path, base: int) -> Path:
    """Writes a model's folder with the table of the formula, and nothing else."""
    spec = full_spec(base)
    prefix = "model.layers.1.ple.ple_embedding."
    num_shards = 128
    each = -(-spec.num_rows // num_shards)
    tensors = {
        f"{prefix}layer_multipliers": torch.tensor(spec.multipliers),
        f"{prefix}ngram_heads_vocab_sizes": torch.tensor(spec.sizes),
        f"{prefix}ngram_heads_offsets": torch.tensor(spec.offsets),
        f"{prefix}ngram_embedding.weight_scale": torch.tensor(CODEC.scale),
    }
    for index in range(num_shards):
        row_ids = torch.arange(index * each, min((index + 1) * each, spec.num_rows), device="cuda")
        rows = rows_by_formula(row_ids).cpu().view(torch.float8_e4m3fn)
        tensors[f"{prefix}ngram_embedding.shard_{index}.weight"] = rows
    save_file(tensors, path / "model.safetensors")
    config = {
        "model_type": "qwen4_exp_text", "num_hidden_layers": 2, "ple_layer_ids": [2],
        "vocab_size": spec.vocab_size, "eos_token_id": spec.eos_token_id,
        "ngram_size": spec.ngram_size, "heads_per_ngram": spec.heads_per_ngram,
        "hidden_size": spec.embed_dim, "ple_embed_dim": spec.embed_dim,
        "ngram_vocab_size_base": base, "seed": spec.seed, "split_ngram_parts": num_shards,
        "make_ngram_vocab_size_divisible_by": spec.rows_multiple,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return path


def load(base: int, placement: str) -> Table:
    """Returns the table of the formula in one tier."""
    table = Table.empty(
        full_spec(base), CODEC, placement=placement, device="cuda", num_shards=128,
        settings=settings(host_gather_rows=1 << 15),
    )  # fmt: skip
    load_by_formula(table, "cuda")
    return table


def build(smoke: bool) -> Iterator[Case | MeasuredCase]:
    """Yields decode, request-to-rows and prefill, the disk's last."""
    print(f"{platform.release()}, {os.cpu_count()} CPUs, {usable_cpus()} usable")
    base = 10_000 if smoke else 1_000_000
    tokens, chunks, layers, repeats = (256, 3, 2, 1) if smoke else (8192, 8, 48, 5)
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        host = opened.enter_context(load(base, "host"))
        device = opened.enter_context(load(base, "device"))
        write_folder(folder, base)
        disk = opened.enter_context(
            Table.open(folder, placement="disk", device="cuda", settings=settings())
        )
        parameters = {"codec": "fp8", "table_bytes": host.spec.num_rows * CODEC.row_bytes}
        ways = {
            "device": Way(device),
            "host, read by the GPU": Way(host),
            "host, doorbell": Way(host, rings=True),
        }
        more = {
            1: {"disk, doorbell": Way(disk)},
            64: {"host, doorbell, copied first": Way(host, rings=True, is_copied=True)},
        }
        for num_requests, others in more.items():
            case, closing = decode_case(ways | others, num_requests, parameters)
            with closing:
                yield case
        case, connector = request_to_rows_case(host, tokens, parameters)
        with connector:
            yield case
            print_service(case.name, connector)
        for name, table in (("host", host), ("disk", disk)):
            prefill = Prefill(table, tokens, chunks, layers)
            yield prefill.case(f"idle a chunk, table on {name}", parameters, repeats)


BENCHMARK = Benchmark(
    name="gpu_offload",
    build=build,
    sources=[
        "src/gramary/offload/*.py", "src/gramary/offload/cuda/*.py", "csrc/offload/*",
        "benchmarks/gpu_offload.py",
    ],
    needs="cuda",
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
