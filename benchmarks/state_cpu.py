"""The state of a PLE layer on the CPU: gate, convolution and window against Hugging Face's layer.

    python -m benchmarks.state_cpu

The real geometry (4 streams of 2560, kernel 4, dilation 3, bfloat16); keys and values are given,
so that no projection is timed. A fresh request reads its prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.harness import Benchmark, Case, main
from gramary import ple

STREAMS, HIDDEN, KERNEL, DILATION = 4, 2560, 4, 3
EPS = 1e-6


class Given(torch.nn.Module):
    """Stands for a projection: gives the same tensor whatever it is asked."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, *_: Any) -> torch.Tensor:
        """Returns the tensor."""
        return self.value


def make_inputs(num_tokens: int) -> dict[str, torch.Tensor]:
    """Returns random streams, keys, values and weights in bfloat16."""
    generator = torch.Generator().manual_seed(num_tokens)
    channels = STREAMS * HIDDEN

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    return {
        "residual": random(num_tokens, STREAMS, HIDDEN),
        "key": random(num_tokens, STREAMS, HIDDEN),
        "value": random(num_tokens, HIDDEN),
        "k_norm_weight": random(channels) * 0.1,
        "q_norm_weight": random(channels) * 0.1,
        "u_norm_weight": random(channels) * 0.1,
        "conv_weight": random(channels, KERNEL),
    }


def bind(inputs: dict[str, torch.Tensor]) -> ple.Binding:
    """Returns a binding of one fresh request."""
    num_tokens = len(inputs["value"])
    caps = ple.Caps(
        device="cpu", mode="mixed", max_tokens=num_tokens, max_seqs=1, max_state_slots=1,
        max_speculative_tokens=0, streams=STREAMS, hidden_size=HIDDEN, kernel_size=KERNEL,
        dilation=DILATION, dtype=torch.bfloat16,
    )  # fmt: skip
    plan = ple.plan(caps)
    return ple.bind(
        plan,
        scratch=torch.empty(plan.scratch_nbytes, dtype=torch.uint8),
        query_start_loc=torch.tensor([0, num_tokens], dtype=torch.int32),
        start_positions=torch.zeros(1, dtype=torch.int64),
        state_slot_ids=torch.zeros(1, dtype=torch.int64),
        num_seqs=torch.ones(1, dtype=torch.int32),
        num_tokens=torch.tensor([num_tokens], dtype=torch.int32),
        conv_state=torch.empty(1, caps.state_capacity, caps.channels, dtype=caps.dtype),
        out=torch.empty_like(inputs["residual"]),
        **inputs,
    )


def make_hugging_face(inputs: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Returns transformers' layer over the same inputs."""
    from transformers import Qwen4ExpTextConfig
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextPLELayer

    config = Qwen4ExpTextConfig(
        hidden_size=HIDDEN, hc_count=STREAMS, ngram_size=DILATION, ple_conv_kernel_size=KERNEL,
        ple_embed_dim=64, ngram_vocab_size_base=8, heads_per_ngram=2, ple_layer_ids=[2],
        rms_norm_eps=EPS, vocab_size=100, eos_token_id=1,
    )  # fmt: skip
    layer = Qwen4ExpTextPLELayer(config, layer_idx=1, ple_layer_index=0).to(torch.bfloat16).eval()
    layer.ple_embedding = Given(inputs["value"][None])
    layer.key_proj = Given(inputs["key"].flatten(1)[None])
    layer.value_proj = Given(inputs["value"][None])
    with torch.no_grad():
        layer.norm_key.weight.copy_(inputs["k_norm_weight"])
        layer.norm_query.weight.copy_(inputs["q_norm_weight"])
        layer.norm_conv.weight.copy_(inputs["u_norm_weight"])
        layer.conv1d.weight.copy_(inputs["conv_weight"].unsqueeze(1))
    return layer


def make_case(num_tokens: int, smoke: bool) -> Case:
    """Returns one prompt, by both."""
    inputs = make_inputs(num_tokens)
    binding, layer = bind(inputs), make_hugging_face(inputs)
    streams = inputs["residual"].flatten(1)[None]

    def hugging_face() -> torch.Tensor:
        with torch.inference_mode():
            return layer(streams, None, None)[0]

    def check() -> int:
        expected, found = hugging_face(), ple.run(binding, eps=EPS).flatten(1)
        if not torch.equal(found, expected):
            raise AssertionError(f"{num_tokens} tokens: the contribution differs")
        return expected.numel()

    return Case(
        name=f"prefill {num_tokens} tokens",
        parameters={"num_tokens": num_tokens, "torch_threads": torch.get_num_threads()},
        candidates={"hugging face": hugging_face, "gramary": lambda: ple.run(binding, eps=EPS)},
        baseline="hugging face",
        check=check,
        checked="the contribution equals Hugging Face's, bit for bit",
        moved_bytes=sum(inputs[n].nbytes for n in ("residual", "key", "value", "residual")),
        cache_note="the same tensors in every call",
        num_samples=3 if smoke else 15,
    )


def build(smoke: bool) -> Iterator[Case]:
    """Yields prompts of growing length."""
    for num_tokens in (16,) if smoke else (1, 16, 128, 512):
        yield make_case(num_tokens, smoke)


BENCHMARK = Benchmark(
    name="state_cpu",
    build=build,
    sources=["src/gramary/ops/_cpu/gate_conv*.py", "src/gramary/ops/_cpu/window.py",
             "src/gramary/ple/*.py", "benchmarks/state_cpu.py"],
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
