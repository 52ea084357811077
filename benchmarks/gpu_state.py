"""The state of a PLE layer on one GPU: ours against vLLM's gate and convolution.

    python -m benchmarks.gpu_state

The real geometry (4 streams of 2560, kernel 4, dilation 3, bfloat16), the residual added on both
sides, as CUDA-graph replay. Decode runs requests at position 1000, with and without drafts; prefill
runs one request from position 0. `export` writes one window checkpoint a request, offsets spread
over its tokens. Where vLLM is not installed, a copy of the residual is the baseline.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator

import torch

from benchmarks.harness import Benchmark, Case, main
from benchmarks.timers import CudaGraphTimer
from gramary import ple
from gramary.ops.reference.gate_conv import gate_conv_ref

STREAMS, HIDDEN, KERNEL, DILATION = 4, 2560, 4, 3
EPS = 1e-6
POOL_SLOTS = 128
# Bytes a second of a large copy on this GPU bound every kernel; measured in each run.
COPY_BYTES = 1 << 30

# name: mode, requests, tokens a request, drafts, calls in a graph, largest ratio promised.
WORKS = {
    "decode 1 request": ("decode", 1, 1, 0, 200, 0.7),
    "decode 8 requests": ("decode", 8, 1, 0, 200, 0.65),
    "decode 64 requests": ("decode", 64, 1, 0, 200, 0.45),
    "decode 64 requests, 3 drafts each": ("decode", 64, 4, 3, 100, 0.5),
    "prefill 512 tokens": ("mixed", 1, 512, 0, 50, 0.5),
    "prefill 8192 tokens": ("mixed", 1, 8192, 0, 8, 0.35),
}
EXPORT_LIMIT_US = 12.0


def bind(mode: str, requests: int, tokens: int, drafts: int, *, start: int) -> ple.Binding:
    """Returns a binding over random inputs; request i has slot i + 1 and `tokens` tokens."""
    device = torch.device("cuda", torch.cuda.current_device())
    total = requests * tokens
    caps = ple.Caps(
        device=device, mode=mode, max_tokens=total, max_seqs=requests, max_state_slots=POOL_SLOTS,
        max_speculative_tokens=drafts, streams=STREAMS, hidden_size=HIDDEN, kernel_size=KERNEL,
        dilation=DILATION, dtype=torch.bfloat16,
    )  # fmt: skip
    plan = ple.plan(caps)
    generator = torch.Generator(device).manual_seed(total)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, generator=generator).to(torch.bfloat16)

    def integers(values: list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    residual = random(total, STREAMS, HIDDEN)
    return ple.bind(
        plan,
        scratch=torch.zeros(plan.scratch_nbytes, dtype=torch.uint8, device=device),
        residual=residual,
        key=random(total, STREAMS, HIDDEN),
        value=random(total, HIDDEN),
        k_norm_weight=random(caps.channels) * 0.1,
        q_norm_weight=random(caps.channels) * 0.1,
        u_norm_weight=random(caps.channels) * 0.1,
        conv_weight=random(caps.channels, KERNEL),
        query_start_loc=integers([i * tokens for i in range(requests + 1)], torch.int32),
        start_positions=integers([start] * requests, torch.int64),
        state_slot_ids=integers([i + 1 for i in range(requests)], torch.int64),
        num_seqs=integers([requests], torch.int32),
        num_tokens=integers([total], torch.int32),
        conv_state=random(POOL_SLOTS, caps.state_capacity, caps.channels),
        out=torch.empty_like(residual),
        add_residual=True,
    )


class VllmState:
    """vLLM's gate and convolution over the same inputs, on windows of its own.

    Its pool is [slots, channels, window] with channels contiguous, as its cache lays it out.

    Raises:
        ImportError: vLLM, or a version with this model, is not installed.
    """

    def __init__(self, binding: ple.Binding, mode: str) -> None:
        ops = importlib.import_module("vllm.models.qwen4_exp.common.ops.ple")
        self._gate, self._conv = ops.ple_gate, ops.ple_conv
        self._binding = binding
        caps = binding.caps
        total, requests = caps.max_tokens, caps.max_seqs
        drafts = caps.max_speculative_tokens
        window = caps.state_length + drafts
        shape = (POOL_SLOTS, window, caps.channels)
        self.windows = torch.zeros(shape, dtype=caps.dtype, device=caps.device).transpose(1, 2)
        self._key = binding.key.reshape(total, caps.channels)
        self._residual = binding.residual.reshape(total, caps.channels)
        self._slots = binding.state_slot_ids.to(torch.int32)
        starts = binding.query_start_loc
        if mode == "decode" and drafts == 0:
            self._words: dict[str, object] = {"mode": "decode"}
        elif mode == "decode":
            accepted = torch.ones(requests, dtype=torch.int32, device=caps.device)
            self._words = {"mode": "spec", "num_accepted_tokens": accepted}
            self._words |= {"query_start_loc": starts, "spec_query_len": 1 + drafts}
        else:
            fresh = torch.zeros(requests, dtype=torch.bool, device=caps.device)
            self._words = {"mode": "prefill", "has_initial_states": fresh}
            self._words |= {"query_start_loc": starts}

    def run(self) -> torch.Tensor:
        """Returns residual + contribution [T, channels]."""
        b = self._binding
        gated, normed = self._gate(
            self._key, b.value, self._residual, b.k_norm_weight, b.q_norm_weight,
            b.u_norm_weight, EPS,
        )  # fmt: skip
        self._conv(
            normed, gated, self.windows, b.conv_weight, self._slots, self._residual,
            dilation=DILATION, **self._words,
        )  # fmt: skip
        return gated


def make_peer(binding: ple.Binding, mode: str) -> VllmState | None:
    """Returns vLLM's work, or None (said once) where it is not installed."""
    try:
        return VllmState(binding, mode)
    except ImportError:
        print("vllm is not installed: a copy is the baseline", flush=True)
        return None


def on_cpu(binding: ple.Binding) -> ple.Binding:
    """Returns the binding with its tensors copied to the CPU, for the reference."""
    names = [f.name for f in dataclasses.fields(binding)]
    copies = {
        name: getattr(binding, name).cpu().clone()
        for name in names
        if isinstance(getattr(binding, name), torch.Tensor)
    }
    return dataclasses.replace(binding, spans=(), **copies)


def check_against_reference(binding: ple.Binding, peer: VllmState | None) -> int:
    """Compares one run from fresh windows with the plain-torch reference, and vLLM's with ours.

    Sums are taken in another order than torch's, so that single roundings may differ.
    """
    binding.start_positions.zero_()
    expected = on_cpu(binding)
    binding.out.fill_(float("nan"))
    ple.run(binding, eps=EPS)
    gate_conv_ref(expected, eps=EPS)
    for got, wanted in ((binding.out, expected.out), (binding.conv_state, expected.conv_state)):
        differ = (got.cpu() != wanted).float().mean().item()
        assert differ < 0.02, f"{differ:.2%} of the values differ from the reference"
        torch.testing.assert_close(got.cpu().float(), wanted.float(), rtol=2**-6, atol=0.05)
    if peer is not None and binding.caps.max_speculative_tokens == 0:
        peer.windows.zero_()
        theirs = peer.run().view_as(binding.out)
        differ = (theirs != binding.out).float().mean().item()
        assert differ < 0.02, f"{differ:.2%} of the values differ from vllm's"
    return expected.out.numel() + expected.conv_state.numel()


def copy_rate() -> float:
    """Returns bytes a microsecond, read and written, of a large copy on the device."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    sample = CudaGraphTimer(calls=4, replays=2).prepare(lambda: target.copy_(source))
    return 2 * COPY_BYTES / min(sample() for _ in range(5))


def moved_bytes(binding: ple.Binding, window_columns: int) -> int:
    """Returns the fewest bytes of a run: key, value and residual in, result out, windows."""
    caps = binding.caps
    per_token = 3 * caps.channels + caps.hidden_size
    windows = caps.max_seqs * caps.channels * window_columns
    return 2 * (caps.max_tokens * per_token + windows)


def make_case(name: str, rate: float) -> Case:
    """Returns the case of one kind of batch."""
    mode, requests, tokens, drafts, calls, target = WORKS[name]
    binding = bind(mode, requests, tokens, drafts, start=0)
    peer = make_peer(binding, mode)

    def check() -> int:
        compared = check_against_reference(binding, peer)
        binding.start_positions.fill_(1000 if mode == "decode" else 0)
        return compared

    candidates: dict[str, Callable[[], object]] = {
        "ple.run": lambda: ple.run(binding, eps=EPS),
        # What moving the residual alone takes on this machine.
        "copy of the residual": lambda: binding.out.copy_(binding.residual),
    }
    if peer is not None:
        candidates["vllm"] = peer.run
    # A decoded token reads the kernel's taps and writes one column.
    columns = KERNEL * tokens if mode == "decode" else binding.caps.state_capacity
    num_bytes = moved_bytes(binding, columns)
    return Case(
        name=name,
        parameters={
            "mode": mode,
            "requests": requests,
            "tokens_a_request": tokens,
            "max_speculative_tokens": drafts,
            "streams": STREAMS,
            "hidden_size": HIDDEN,
            "kernel_size": KERNEL,
            "dilation": DILATION,
            "dtype": "bfloat16",
        },
        candidates=candidates,
        baseline="copy of the residual" if peer is None else "vllm",
        check=check,
        checked="residual + contribution and windows against the plain-torch reference; vllm's "
        "result too where there are no drafts",
        moved_bytes=num_bytes,
        floor=num_bytes / rate,
        floor_basis="every input read once and every output written once, at the rate of a large "
        "copy measured in this run",
        cache_note="one batch again and again",
        targets={} if peer is None else {"ple.run": target},
        timer=CudaGraphTimer(calls=calls, replays=2),
        num_samples=25,
    )


def make_export_case(rate: float) -> Case:
    """Returns the case of 64 requests of 128 tokens, one checkpoint each."""
    binding = bind("mixed", 64, 128, 0, start=0)
    device = binding.caps.device
    offsets = (torch.arange(64, device=device) * 2 + 1).to(torch.int32)
    slots = torch.arange(64, device=device) + 65
    slots[-1] = 0
    status = torch.full((64,), -1, dtype=torch.int32, device=device)
    columns = binding.caps.state_length

    def export() -> object:
        return ple.export_checkpoint(binding, offsets=offsets, slots=slots, status=status)

    def check() -> int:
        ple.run(binding, eps=EPS)
        status.fill_(-1)
        export()
        assert status.eq(int(ple.ExportStatus.WRITTEN)).all(), status.tolist()
        exported = binding.conv_state[slots].clone()
        for i in (0, 1, 31, 63):
            # The window after `offset` tokens is that of a run that ends there.
            short = on_cpu(binding)
            length = int(offsets[i])
            starts = [0, *([length] * 64)]
            ends = torch.tensor(starts, dtype=torch.int32)
            first = 128 * i
            alone = dataclasses.replace(
                short,
                query_start_loc=ends,
                num_seqs=torch.tensor([1], dtype=torch.int32),
                num_tokens=torch.tensor([length], dtype=torch.int32),
                residual=short.residual.roll(-first, 0),
                key=short.key.roll(-first, 0),
                value=short.value.roll(-first, 0),
            )
            gate_conv_ref(alone, eps=EPS)
            capacity = binding.caps.state_capacity
            held = [p % capacity for p in range(max(0, length - columns), length)]
            wanted, got = alone.conv_state[1][held], exported[i].cpu()[held]
            differ = (wanted != got).float().mean().item()
            assert differ < 0.02, f"checkpoint {i}: {differ:.2%} of the values differ"
        return exported.numel()

    num_bytes = 2 * 64 * binding.caps.channels * (columns + binding.caps.state_capacity)
    # The same bytes by one plain copy.
    source = torch.empty(num_bytes // 2, dtype=torch.uint8, device=device)
    copied = torch.empty_like(source)
    return Case(
        name="export_checkpoint, 64 requests of 128 tokens",
        parameters={
            "requests": 64,
            "tokens_a_request": 128,
            "offsets": "1, 3, ... 127",
            "limit_us": EXPORT_LIMIT_US,
        },
        candidates={"export_checkpoint": export, "copy": lambda: copied.copy_(source)},
        baseline="copy",
        check=check,
        checked="all written; four of the windows against a reference run that ends there",
        moved_bytes=num_bytes,
        floor=num_bytes / rate,
        floor_basis="nine columns of value and residual norms read, a slot written, at the rate "
        "of a large copy measured in this run",
        cache_note="one batch again and again",
        timer=CudaGraphTimer(calls=100, replays=2),
        num_samples=25,
    )


def build(smoke: bool) -> Iterator[Case]:
    """Yields decode, prefill and export."""
    rate = copy_rate()
    for name in list(WORKS)[:1] if smoke else WORKS:
        yield make_case(name, rate)
    yield make_export_case(rate)


BENCHMARK = Benchmark(
    name="gpu_state",
    build=build,
    sources=["src/gramary/ops/_triton/*", "src/gramary/ple/*", "benchmarks/gpu_state.py"],
    needs="cuda",
)

if __name__ == "__main__":
    main(BENCHMARK)
