"""The PLE state operations on a GPU against vLLM's `ple_gate` and `ple_conv`.

Both sides add the residual and keep their windows. vLLM's kernels are called through its own
functions where it can be imported; where not, that is printed and gramary is timed alone. Its
windows lie as its kernels are fastest with them: channels contiguous.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

from benchmarks.harness import Benchmark, Case, main
from benchmarks.timers import CudaGraphTimer
from gramary import ple

EPS = 1e-6
REAL = {"streams": 4, "hidden_size": 2560, "kernel_size": 4, "dilation": 3}
SMALL = {"streams": 2, "hidden_size": 64, "kernel_size": 4, "dilation": 3}
NUM_SLOTS = 256


@dataclasses.dataclass(frozen=True)
class Work:
    """One batch: its mode, requests, tokens a request, and the ratio promised for it."""

    name: str
    mode: str
    num_seqs: int
    tokens_each: int
    at_most: float

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch."""
        return self.num_seqs * self.tokens_each


WORKS = (
    Work("decode, 1 request", "decode", 1, 1, 0.7),
    Work("decode, 8 requests", "decode", 8, 1, 0.65),
    Work("decode, 64 requests", "decode", 64, 1, 0.45),
    Work("decode, 64 requests with 3 drafts each", "decode", 64, 4, 0.5),
    Work("prefill, 512 tokens", "mixed", 1, 512, 0.5),
    Work("prefill, 8192 tokens", "mixed", 1, 8192, 0.35),
)


def bind(work: Work, geometry: dict[str, int]) -> ple.Binding:
    """Returns a binding over random tensors."""
    caps = ple.Caps(
        device=torch.device("cuda"),
        mode=work.mode,
        max_tokens=work.num_tokens,
        max_seqs=work.num_seqs,
        max_state_slots=NUM_SLOTS,
        max_speculative_tokens=work.tokens_each - 1 if work.mode == "decode" else 0,
        dtype=torch.bfloat16,
        **geometry,
    )
    plan = ple.plan(caps)
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda").bfloat16()

    by_stream = (work.num_tokens, caps.streams, caps.hidden_size)
    residual = draw(*by_stream)
    count = {"dtype": torch.int32, "device": "cuda"}
    return ple.bind(
        plan,
        scratch=torch.zeros(plan.scratch_nbytes, dtype=torch.uint8, device="cuda"),
        residual=residual,
        key=draw(*by_stream),
        value=draw(work.num_tokens, caps.hidden_size),
        k_norm_weight=draw(caps.channels),
        q_norm_weight=draw(caps.channels),
        u_norm_weight=draw(caps.channels),
        conv_weight=draw(caps.channels, caps.kernel_size),
        query_start_loc=torch.arange(work.num_seqs + 1, **count) * work.tokens_each,
        start_positions=torch.full((work.num_seqs,), 1000 if work.mode == "decode" else 0,
                                   device="cuda"),
        state_slot_ids=torch.arange(work.num_seqs, device="cuda") + 1,
        num_seqs=torch.tensor([work.num_seqs], **count),
        num_tokens=torch.tensor([work.num_tokens], **count),
        conv_state=torch.zeros(NUM_SLOTS, caps.state_capacity, caps.channels, device="cuda",
                               dtype=torch.bfloat16),
        out=torch.empty_like(residual),
        add_residual=True,
    )  # fmt: skip


def vllm_of(binding: ple.Binding, work: Work) -> Callable[[], torch.Tensor] | None:
    """Returns vLLM's way through the same batch, or None where it is not installed."""
    try:
        from vllm.models.qwen4_exp.common.ops.ple import ple_conv, ple_gate
    except ImportError:
        print("vLLM is not installed: no baseline")
        return None
    b, caps = binding, binding.caps
    window = (
        caps.state_length + work.tokens_each - 1 if work.mode == "decode" else caps.state_length
    )
    # [slots, channels, window] as vLLM wants it, the channels contiguous as its kernels like it.
    state = b.out.new_zeros(NUM_SLOTS, window, caps.channels).transpose(1, 2)
    key, residual = b.key.flatten(1), b.residual.flatten(1)
    rows = b.state_slot_ids.int()
    ones = torch.ones(work.num_seqs, dtype=torch.int32, device="cuda")
    options: dict[str, object] = {"mode": "decode"}
    if work.mode == "mixed":
        options = {"mode": "prefill", "query_start_loc": b.query_start_loc,
                   "has_initial_states": ones.bool()}  # fmt: skip
    elif work.tokens_each > 1:
        options = {"mode": "spec", "query_start_loc": b.query_start_loc,
                   "num_accepted_tokens": ones, "spec_query_len": work.tokens_each}  # fmt: skip

    def run() -> torch.Tensor:
        gated, normed = ple_gate(
            key, b.value, residual, b.k_norm_weight, b.q_norm_weight, b.u_norm_weight, EPS
        )
        ple_conv(normed, gated, state, b.conv_weight, rows, residual,
                 dilation=caps.dilation, **options)  # fmt: skip
        return gated

    return run


def check_against(binding: ple.Binding, peer: Callable[[], torch.Tensor] | None) -> int:
    """Compares the outputs over empty windows; both round where the model does."""
    binding.conv_state.zero_()
    got = ple.run(binding, eps=EPS).flatten(1).clone()
    if peer is None:
        return 0
    expected = peer()
    differing = (got != expected).float().mean().item()
    if differing > 1e-3 or (got.float() - expected.float()).abs().max() > 0.25:
        raise AssertionError(f"{differing:.2%} of the outputs differ from vLLM's")
    return got.numel()


def run_case(work: Work, geometry: dict[str, int], smoke: bool) -> Case:
    """Returns a batch run by gramary and by vLLM."""
    binding = bind(work, geometry)
    peer = vllm_of(binding, work)
    caps = binding.caps
    rows = work.num_tokens * caps.channels * 2
    values = work.num_tokens * caps.hidden_size * 2
    windows = work.num_seqs * caps.channels * 2 * (caps.kernel_size - 1 + work.tokens_each)
    moved = 3 * rows + values + (windows if work.mode == "decode" else 0)
    candidates: dict[str, Callable[[], object]] = {
        "gramary": lambda: ple.run(binding, eps=EPS),
        **({} if peer is None else {"vllm ple_gate + ple_conv": peer}),
    }
    baseline = "gramary" if peer is None else "vllm ple_gate + ple_conv"
    return Case(
        name=work.name,
        parameters={**geometry, "num_seqs": work.num_seqs, "num_tokens": work.num_tokens},
        candidates=candidates,
        baseline=baseline,
        check=lambda: check_against(binding, peer),
        checked="outputs equal vLLM's but for last bits",
        moved_bytes=moved,
        floor=round(moved / 4.3e6, 3),
        floor_basis="each input read and each output written once at 4.3 TB/s (a copy's rate)",
        cache_note="the same buffers in every call: in the L2 cache where they fit (50 MB)",
        targets={} if peer is None or smoke else {"gramary": work.at_most},
        timer=CudaGraphTimer(calls=10 if work.num_tokens > 1000 else 100),
        num_samples=3 if smoke else 25,
    )


def export_case(geometry: dict[str, int], smoke: bool) -> Case:
    """Returns the export of one checkpoint for each of 64 requests of 128 tokens."""
    work = Work("export", "mixed", 64, 128, 1.0)
    binding = bind(work, geometry)
    ple.run(binding, eps=EPS)
    caps = binding.caps
    offsets = (torch.arange(64, device="cuda") * 127 // 63 + 1).int()
    slots = torch.arange(64, device="cuda") + 100
    status = torch.empty_like(offsets)

    def export() -> None:
        ple.export_checkpoint(binding, offsets=offsets, slots=slots, status=status)

    def check() -> int:
        export()
        if not bool((status == ple.ExportStatus.WRITTEN).all()):
            raise AssertionError("not all checkpoints were written")
        # The last request's is of its whole run, and so equals its own window.
        windows = [
            ple.to_chronological(binding.conv_state[slot], 128, caps.state_length)
            for slot in (64, int(slots[-1]))
        ]
        if not torch.equal(windows[0], windows[1]):
            raise AssertionError("the checkpoint of a whole run differs from the window")
        return status.numel() + windows[0].numel()

    moved = 64 * (caps.state_capacity * caps.channels + caps.state_length * caps.hidden_size) * 2
    return Case(
        name="export_checkpoint, 64 requests of 128 tokens, offsets 1 to 128",
        parameters={**geometry, "num_seqs": 64, "num_tokens": 64 * 128},
        candidates={"gramary": export, "copy of the windows": copy_of(binding)},
        baseline="copy of the windows",
        check=check,
        checked="all statuses are WRITTEN, and the checkpoint of a whole run equals its window",
        moved_bytes=moved,
        floor=round(moved / 4.3e6, 3),
        floor_basis="values read and windows written once at 4.3 TB/s (a copy's rate)",
        cache_note="the same buffers in every call",
        timer=CudaGraphTimer(calls=100),
        num_samples=3 if smoke else 25,
    )


def copy_of(binding: ple.Binding) -> Callable[[], object]:
    """Returns a copy of as many windows as an export writes."""
    source, target = binding.conv_state[100:164], binding.conv_state[164:228]
    return lambda: target.copy_(source)


def build(smoke: bool) -> Iterator[Case]:
    """Yields a case for each line of the promise."""
    geometry = SMALL if smoke else REAL
    for work in WORKS:
        yield run_case(work, geometry, smoke)
    yield export_case(geometry, smoke)


BENCHMARK = Benchmark(
    name="ple_gpu",
    build=build,
    sources=["src/gramary/ops/_triton/*.py", "src/gramary/ops/gate_conv.py",
             "src/gramary/ple/*.py", "benchmarks/ple_gpu.py"],
    needs="cuda",
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
