"""Host rows to a GPU: CPU threads and one copy, or the GPU's own reads, against vLLM's chain.

    PYTHONPATH=<vLLM's package> python -m benchmarks.gpu_host_path

The full published fp8 table lies in pinned host memory. Every candidate starts at tokens and ends
with decoded bfloat16 rows on the device, which the host has waited for: its time is wall time. The
baseline is vLLM 0.33.0's own functions (hash, lookup from pinned memory, dequantise) over the same
pinned rows, from tokens that are on the device already, replayed as one CUDA graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch

from benchmarks.gpu_full_table import full_spec, load_by_formula
from benchmarks.harness import Benchmark, Case, main
from benchmarks.timers import CpuTimer
from gramary import Table
from gramary.model.codecs import Codec
from gramary.settings import Settings

GIB = 1 << 30
NUM_TOKENS = (1, 64, 512, 2048, 8192)
CODEC = Codec("fp8", 160, 2.0**-12)

# Batches that take turns, so that no cache still holds the rows of a batch when it comes again.
NUM_BATCHES = 8

# What the threads' gather reaches on this hardware, in bytes a second.
GATHER_RATE = 20e9

# Tokens of the target, and the largest ratio promised there.
TARGETS = {8192: 0.45}

Work = Callable[[], None]


def open_table(base: int) -> Table:
    """Returns the table, all of its rows in pinned host memory; the threads always gather."""
    settings = Settings.from_env(memory_limit_bytes=100 * GIB, host_gather_rows=0)
    table = Table.empty(
        full_spec(base), CODEC, placement="host", device="cuda", num_shards=128, settings=settings
    )
    load_by_formula(table, "cuda")
    return table


def replayed(work: Callable[[], object]) -> Work:
    """Returns a replay of `work` as one CUDA graph, waited for."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def replay(_captured: object = work) -> None:
        # The graph reads the tensors that `work` holds, so that it must live as long.
        graph.replay()
        torch.cuda.synchronize()

    return replay


def vllm_chain(
    table: Table, rows: torch.Tensor, batch: tuple[torch.Tensor, ...]
) -> tuple[Work, list[torch.Tensor]]:
    """Returns vLLM's chain over the same pinned rows, and a list that its result is put into."""
    from vllm.models.qwen4_exp.common.ngram_embedding import Qwen4ExpPLEFp8EmbeddingMethod
    from vllm.models.qwen4_exp.common.ops.ple import ple_ngram_ids

    spec = table.spec
    token_ids, starts, history = (tensor.cuda() for tensor in batch)
    constants = [
        torch.tensor(c, device="cuda") for c in (spec.multipliers, spec.sizes, spec.offsets)
    ]
    bounds = SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=spec.num_rows)
    layer = SimpleNamespace(
        weight=torch.empty(0, 160, dtype=torch.float8_e4m3fn, device="cuda"),
        weight_scale=torch.tensor(CODEC.scale, device="cuda"),
        _uva_weight=rows, embedding_dim=160, shard_indices=bounds,
    )  # fmt: skip
    method = Qwen4ExpPLEFp8EmbeddingMethod()
    shape = (token_ids.numel(), spec.num_heads)
    row_ids = torch.empty(shape, dtype=torch.int64, device="cuda")
    encoded = torch.empty(*shape, 160, dtype=torch.float8_e4m3fn, device="cuda")
    results: list[torch.Tensor] = []

    def chain() -> None:
        ple_ngram_ids(token_ids, starts, history, *constants, spec.eos_token_id,
                      spec.heads_per_ngram, output=row_ids)  # fmt: skip
        method.lookup_from_pinned(layer, row_ids.view(-1), encoded)
        results[:] = [method.dequantize(layer, encoded, torch.bfloat16)]

    return replayed(chain), results


def random_batch(table: Table, num_tokens: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Returns one request of uniform random tokens on the host, int32."""
    generator = torch.Generator().manual_seed(seed)
    high, dtype = table.spec.vocab_size, torch.int32
    token_ids = torch.randint(0, high, (num_tokens,), generator=generator, dtype=dtype)
    history = torch.randint(0, high, (1, 2), generator=generator, dtype=dtype)
    return token_ids, torch.tensor([0, num_tokens], dtype=dtype), history


class Candidates:
    """The three ways, for one batch, each into its own result."""

    def __init__(self, table: Table, rows: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> None:
        shape = (batch[0].numel(), table.spec.embed_dim)
        self.brought = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        self.read = torch.empty_like(self.brought)
        on_device = tuple(tensor.cuda() for tensor in batch)

        def bring() -> None:
            table.embed(*batch, out=self.brought)
            torch.cuda.synchronize()

        self.bring = bring
        self.reads = replayed(lambda: table.embed(*on_device, out=self.read))
        self.chain, self.results = vllm_chain(table, rows, batch)

    def check(self) -> int:
        """Compares the three results; returns how many values."""
        self.brought.fill_(float("nan"))
        self.read.fill_(float("nan"))
        for work in (self.bring, self.reads, self.chain):
            work()
        if not torch.equal(self.brought.view(torch.int16), self.read.view(torch.int16)):
            raise AssertionError("the two ways differ")
        theirs, ours = self.results[0].view(self.read.shape).float(), self.brought.float()
        # Theirs multiplies in another order: one rounding of bfloat16 apart at most.
        torch.testing.assert_close(theirs, ours, rtol=2**-7, atol=0, equal_nan=True)
        return self.brought.numel()


def in_turn(works: list[Work]) -> Work:
    """Returns work that does one of several each time, in turn."""
    turn = itertools.cycle(works)
    return lambda: next(turn)()


def build_case(table: Table, rows: torch.Tensor, num_tokens: int) -> Case:
    """Returns the case of one batch size."""
    batches = [random_batch(table, num_tokens, seed) for seed in range(NUM_BATCHES)]
    ways = [Candidates(table, rows, batch) for batch in batches]
    row_bytes = num_tokens * table.spec.num_heads * CODEC.row_bytes
    threads = "CPU threads and one copy (tokens on the host)"
    return Case(
        name=f"host fp8, {num_tokens} tokens",
        parameters={"tokens": num_tokens, "rows": table.spec.num_rows, "batches": NUM_BATCHES},
        candidates={
            threads: in_turn([way.bring for way in ways]),
            "the GPU's own reads (tokens on the device)": in_turn([way.reads for way in ways]),
            "vLLM 0.33.0": in_turn([way.chain for way in ways]),
        },
        baseline="vLLM 0.33.0",
        check=lambda: sum(way.check() for way in ways),
        checked="both ways equal bit for bit; vLLM's to one bfloat16 rounding",
        moved_bytes=row_bytes,
        floor=row_bytes / GATHER_RATE * 1e6,
        floor_basis=f"gathered at {GATHER_RATE / 1e9:.0f} GB/s, copied behind it",
        cache="cold",
        cache_note=f"{NUM_BATCHES} batches of uniform random rows of the whole table in turn",
        targets={threads: TARGETS[num_tokens]} if num_tokens in TARGETS else {},
        timer=CpuTimer(min_sample_us=5000.0),
    )


def build(smoke: bool) -> Iterator[Case]:
    """Yields a case for each batch size."""
    with open_table(50_000 if smoke else 20_000_000) as table:
        host = table.residency.host
        assert host is not None
        for num_tokens in NUM_TOKENS:
            yield build_case(table, host.rows, num_tokens)


BENCHMARK = Benchmark(
    name="gpu_host_path",
    build=build,
    sources=("src/gramary/reading/*.py", "src/gramary/tiers/*.py", "src/gramary/ops/_triton/*.py",
             "csrc/rows/*", "csrc/hash/*", "benchmarks/gpu_host_path.py"),
    needs="cuda",
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
