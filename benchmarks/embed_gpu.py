"""Tokens to decoded rows on one GPU: one launch against vLLM's hash, gather and dequantise.

    python -m benchmarks.embed_gpu

The full published geometry in fp8 (320,001,536 rows), on the device, in registered host memory
read over the bus, and split between both. Every call of a captured graph has its own uniform
random tokens, and the L2 cache is overwritten before each replay, so that rows are always cold.
Needs 64 GiB on the device and of host memory. Where vLLM is not installed, the baseline is the same
work by this package in three launches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from benchmarks import vllm_peer
from benchmarks.gpu_full_table import GIB, full_spec
from benchmarks.harness import Benchmark, Case, main
from benchmarks.timers import CudaGraphTimer
from gramary.flat_batch import FlatBatch
from gramary.model.codecs import Codec, decode_rows_ref
from gramary.model.hashing import HashSpec
from gramary.native.rows import RowExtent
from gramary.ops._triton.decode import decode
from gramary.ops._triton.embed import embed, lookup
from gramary.ops._triton.hash import HashConstants, ngram_ids
from gramary.ops._triton.sticky_error import new_error
from gramary.ops.extents import Extents
from gramary.settings import Settings
from gramary.tiers.host import HostOptions, HostTier
from gramary.tiers.registration import CudaHostRegistry

FP8 = Codec("fp8", 160, 2.0**-12 * 1.25)

# More than any GPU's L2 cache.
FLUSH_BYTES = 1 << 29

# Tokens of a batch, its requests, calls captured in one graph.
DEVICE_BATCHES = ((1, 1, 400), (64, 64, 200), (512, 4, 60), (8192, 8, 16))
HOST_BATCHES = ((1, 1, 200), (64, 64, 50))

# Largest ratio to vLLM's time that was promised.
TARGETS = {
    "device 1": 0.35,
    "device 64": 0.45,
    "device 8192": 0.15,
    "host 1": 0.6,
    "host 64": 0.7,
}


@dataclasses.dataclass(frozen=True)
class Place:
    """Rows in one or two extents.

    Attributes:
        name: "device", "host" or "split".
        spec: geometry of the table.
        extents: where its rows are.
        device_rows: uint8 [n, 160], the rows of the device extent, which begins with row 0.
        host_rows: uint8 [num_rows, 160] as the CPU sees the host extent's memory, from row 0.
    """

    name: str
    spec: HashSpec
    extents: Extents
    device_rows: torch.Tensor | None = None
    host_rows: torch.Tensor | None = None

    def encoded(self, row_ids: torch.Tensor) -> torch.Tensor:
        """Returns encoded rows uint8 [n, 160] by plain indexing."""
        extents = self.extents
        rows = torch.empty(row_ids.numel(), 160, dtype=torch.uint8, device=row_ids.device)
        if self.device_rows is not None:
            mine = row_ids < extents.device.end_row
            rows[mine] = self.device_rows[row_ids[mine]]
        if self.host_rows is not None:
            theirs = row_ids >= extents.host.first_row
            rows[theirs] = self.host_rows[row_ids[theirs].cpu()].to(rows.device)
        return rows


class Batches:
    """Batches of uniform random tokens, one after another, again and again.

    Args:
        spec: geometry of the table.
        num_tokens: tokens of a batch.
        num_requests: requests of a batch, equally long, each with a history.
        num_batches: how many different ones.
        device: where they lie.
    """

    def __init__(
        self, spec: HashSpec, num_tokens: int, num_requests: int, num_batches: int, device: str
    ) -> None:
        generator = torch.Generator(device).manual_seed(num_tokens)

        def random(*shape: int) -> torch.Tensor:
            return torch.randint(
                spec.vocab_size, shape, dtype=torch.int32, device=device, generator=generator
            )

        self.num_tokens, self.num_batches = num_tokens, num_batches
        self._tokens = random(num_batches, num_tokens)
        self._history = random(num_batches, num_requests, spec.history_length)
        starts = torch.arange(num_requests + 1, device=device) * (num_tokens // num_requests)
        self._starts = starts.to(torch.int32)
        self._next = 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns token_ids, query_start_loc and history of the next batch."""
        i = self._next
        self._next = (i + 1) % self.num_batches
        return self._tokens[i], self._starts, self._history[i]


class Ours:
    """This package's work on one place and batch size, in one launch and in three."""

    def __init__(self, place: Place, num_tokens: int, device: str) -> None:
        self.place = place
        spec, width = place.spec, place.spec.embed_dim
        self.constants = HashConstants.of(spec, device)
        self.error = new_error(device)
        self.out = torch.empty(num_tokens, width, dtype=torch.bfloat16, device=device)
        self.ids = torch.empty(num_tokens, spec.num_heads, dtype=torch.int64, device=device)
        shape = (num_tokens * spec.num_heads, FP8.row_bytes)
        self.encoded = torch.empty(shape, dtype=torch.uint8, device=device)

    def one_launch(self, *batch: torch.Tensor) -> torch.Tensor:
        """Returns the rows of a batch, [T, num_heads * row_dim]."""
        return embed(
            self.constants, FlatBatch(*batch), self.place.extents, FP8, self.out, self.error
        )

    def three_launches(self, *batch: torch.Tensor) -> torch.Tensor:
        """Returns the same, by ids, encoded rows and decoded rows in turn."""
        ngram_ids(self.constants, FlatBatch(*batch), self.ids, self.error)
        lookup(self.ids.view(-1), self.place.extents, FP8, self.encoded, self.error)
        decode(self.encoded, FP8, self.out.view(-1, FP8.row_dim))
        return self.out


def make_case(
    place: Place, num_tokens: int, num_requests: int, num_calls: int, *, device: str = "cuda"
) -> Case:
    """Returns one place and batch size, all candidates over the same batches."""
    ours = Ours(place, num_tokens, device)
    batches = Batches(place.spec, num_tokens, num_requests, num_calls, device)
    candidates = {
        "three launches": lambda: ours.three_launches(*batches.next()),
        "one launch": lambda: ours.one_launch(*batches.next()),
    }
    peer = make_peer(place, num_tokens) if place.name != "split" else None
    if peer is not None:
        candidates["vllm"] = lambda: peer.embed(*batches.next())
    name = f"{place.name} {num_tokens}"
    has_target = peer is not None and name in TARGETS
    moved_bytes = num_tokens * place.spec.num_heads * (FP8.row_bytes + 2 * FP8.row_dim)
    buffer = torch.empty(FLUSH_BYTES if device == "cuda" else 1, dtype=torch.uint8, device=device)

    def overwrite_cache() -> None:
        buffer.zero_()

    return Case(
        name=f"{name} tokens",
        parameters={
            "num_tokens": num_tokens,
            "num_requests": num_requests,
            "num_rows": place.spec.num_rows,
            "device_rows": place.extents.device.num_rows,
            "host_rows": place.extents.host.num_rows,
            "codec": "fp8",
            "batches": num_calls,
        },
        candidates=candidates,
        baseline="three launches" if peer is None else "vllm",
        check=lambda: check(ours, peer, batches),
        checked="rows equal plainly indexed, plainly decoded ones, bit for bit"
        + ("" if peer is None else "; vllm's ids too, and its rows up to its rounding"),
        moved_bytes=moved_bytes,
        floor=floor_us(place, num_tokens) if device == "cuda" else None,
        floor_basis="encoded rows read and bfloat16 rows written, at the rates of a large addition "
        "within the device and a large copy from registered host memory, measured in this run",
        cache="cold",
        cache_note="each call has its own uniform random tokens; L2 is overwritten before a replay",
        targets={"one launch": TARGETS[name]} if has_target else {},
        before=overwrite_cache,
        timer=CudaGraphTimer(calls=num_calls, replays=1),
        num_samples=25,
    )


def make_warm_case(place: Place, num_tokens: int, num_requests: int) -> Case:
    """Returns one batch again and again: what the bus costs without address translation."""
    case = make_case(place, num_tokens, num_requests, 1)
    return dataclasses.replace(
        case,
        name=f"{place.name} {num_tokens} tokens, repeated",
        cache="warm",
        cache_note="one batch again and again: its pages' translations stay cached, and its rows "
        "where the GPU caches host memory",
        targets={},
        before=None,
        timer=CudaGraphTimer(calls=50, replays=4),
    )


def make_peer(place: Place, num_tokens: int) -> vllm_peer.VllmChain | None:
    """Returns vLLM's chain over the same rows, or None (said once) where it is not installed."""
    if not vllm_peer.is_installed():
        print("vllm is not installed: compared with three launches of our own", flush=True)
        return None
    rows = place.host_rows if place.device_rows is None else place.device_rows
    assert rows is not None
    return vllm_peer.VllmChain(place.spec, FP8.scale or 1.0, rows, num_tokens)


def check(ours: Ours, peer: vllm_peer.VllmChain | None, batches: Batches) -> int:
    """Compares every candidate's rows of one batch with plain indexing; returns how many values.

    Raises:
        AssertionError: bits differ, or a token was reported wrong.
    """
    batch = batches.next()
    for work in (ours.three_launches, ours.one_launch):
        ours.out.fill_(float("nan"))
        rows = work(*batch).view(-1, FP8.row_dim)
        expected = decode_rows_ref(FP8, ours.place.encoded(ours.ids.view(-1)), torch.bfloat16)
        assert torch.equal(rows.view(torch.int16), expected.view(torch.int16)), "rows differ"
    assert not ours.error.any(), "a token was taken for a wrong one"
    if peer is not None:
        assert torch.equal(peer.ngram_ids(*batch), ours.ids), "vllm's ids differ"
        theirs = peer.embed(*batch).view(-1, FP8.row_dim)
        torch.testing.assert_close(theirs, expected, rtol=2.0**-6, atol=0.0)
    return expected.numel()


def floor_us(place: Place, num_tokens: int) -> float:
    """Returns the least time for a batch's bytes, at the rates of large transfers."""
    extents = place.extents
    rows = num_tokens * place.spec.num_heads
    on_host = rows * extents.host.num_rows / place.spec.num_rows
    moved_on_device = (rows - on_host) * FP8.row_bytes + rows * 2 * FP8.row_dim
    device_us = moved_on_device / copy_rate(None)
    if place.host_rows is None:
        return device_us
    # Reads over the bus and writes to device memory go on at the same time.
    return max(device_us, on_host * FP8.row_bytes / copy_rate(place.host_rows))


def copy_rate(host_rows: torch.Tensor | None) -> float:
    """Returns bytes a microsecond: of a large addition within the device (read and written; its
    multiprocessors are faster there than its copy engine), or of a copy up from registered host
    memory."""
    count = 1 << 30 if host_rows is None else min(1 << 28, host_rows.numel())
    to = torch.empty(count, dtype=torch.uint8, device="cuda")
    source = torch.empty_like(to) if host_rows is None else host_rows.view(-1)[:count]

    def move() -> None:
        if host_rows is None:
            torch.add(source.view(torch.int64), 1, out=to.view(torch.int64))
        else:
            to.copy_(source, non_blocking=True)

    sample = CudaGraphTimer(calls=4, replays=2).prepare(move)
    return (2 if host_rows is None else 1) * count / min(sample() for _ in range(5))


def random_rows(num_rows: int, device: str) -> torch.Tensor:
    """Returns uint8 [num_rows, 160] of random codes, none of them NaN."""
    rows = torch.empty(num_rows, 160, dtype=torch.uint8, device=device)
    for piece in rows.view(-1).view(torch.int64).split(1 << 28):
        # Without bit 6 a code is neither 0x7F nor 0xFF.
        piece.random_().bitwise_and_(-0x4040404040404041)
    return rows


def host_tier(num_rows: int) -> HostTier:
    """Returns registered host rows: one random block over and over."""
    settings = Settings.from_env(memory_limit_bytes=100 * GIB)
    options = HostOptions(registry=CudaHostRegistry(torch.cuda.current_device()))
    tier = HostTier(0, num_rows, FP8.row_bytes, settings, options)
    block = random_rows(min(num_rows, 1 << 22), "cuda").cpu()
    for rows in tier.rows.split(block.shape[0]):
        rows.copy_(block[: rows.shape[0]])
    return tier


def build(smoke: bool) -> Iterator[Case]:
    """Yields the cases of device rows, then of host rows, then of both."""
    spec = full_spec(50_000 if smoke else 20_000_000)
    num_rows = spec.num_rows
    rows = random_rows(num_rows, "cuda")
    on_device = RowExtent(rows.data_ptr(), 0, num_rows)
    place = Place("device", spec, Extents(num_rows, on_device), rows)
    for batch in DEVICE_BATCHES:
        yield make_case(place, *batch[:2], 3 if smoke else batch[2])
    tier = host_tier(num_rows)
    on_host = tier.registered_extent
    place = Place("host", spec, Extents(num_rows, host=on_host), host_rows=tier.rows)
    for batch in HOST_BATCHES:
        yield make_case(place, *batch[:2], 3 if smoke else batch[2])
    yield make_warm_case(place, 64, 64)
    half = num_rows // 2
    both = Extents(
        num_rows,
        RowExtent(rows.data_ptr(), 0, half),
        RowExtent(on_host.address + half * 160, half, num_rows - half),
    )
    place = Place("split", spec, both, rows[:half], tier.rows)
    for batch in HOST_BATCHES:
        yield make_case(place, *batch[:2], 3 if smoke else batch[2])
    torch.cuda.synchronize()
    tier.close()


BENCHMARK = Benchmark(
    name="embed_gpu",
    build=build,
    sources=["src/gramary/ops/_triton/*", "src/gramary/ops/extents.py", "benchmarks/embed_gpu.py",
             "benchmarks/vllm_peer.py", "benchmarks/gpu_full_table.py"],
    needs="cuda",
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
