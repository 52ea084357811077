"""models/tiny end to end: tokens a second at each placement, against resident Hugging Face.

    python -m benchmarks.end_to_end --device cpu

transformers generates greedily with an `nn.Embedding` of the decoded rows, and with gramary's
tables. Tokens and logits have to be the same bits before anything is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.harness import Benchmark, Case, main
from benchmarks.machine import ROOT
from benchmarks.subjects import choose_device
from benchmarks.timers import CpuTimer

TINY = ROOT / "models" / "tiny"
TEXT = "And it came to pass in those days, that the king"
BASELINE = "hugging face, resident"
PLACEMENTS = {
    "cpu": ("host", "host=2MiB,disk", "disk"),
    "cuda": ("device", "device=2MiB,host", "host", "disk"),
}


def load_hugging_face(device: str) -> Any:
    """Returns transformers' own model, its embedding filled with the decoded rows."""
    from transformers import Qwen4ExpForCausalLM

    from gramary import Table

    model = Qwen4ExpForCausalLM.from_pretrained(TINY)
    embedding = model.model.layers[1].ple.ple_embedding.ngram_embedding
    with Table.open(TINY, placement="disk") as table, torch.no_grad():
        embedding.weight.copy_(table.lookup(torch.arange(table.spec.num_rows)))
    return model.to(device)


def generate(model: Any, prompt: torch.Tensor, new_tokens: int, *, logits: bool = False) -> Any:
    """Returns what `generate` gives for exactly `new_tokens` greedy tokens."""
    result = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=logits,
    )
    if prompt.device.type == "cuda":
        torch.cuda.synchronize()
    return result


def bytes_by_tier(model: Any) -> dict[str, int]:
    """Returns the bytes of the model's rows in each tier."""
    table = model.tables[0]
    found: dict[str, int] = {}
    for extent in table.placement.extents:
        found[extent.tier] = found.get(extent.tier, 0) + extent.num_rows * table.codec.row_bytes
    return found


def build(smoke: bool, *, device: str, new_tokens: int) -> Iterator[Case]:
    """Yields one case: every placement and the resident baseline, in alternation."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    from gramary.integrations.transformers import load

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # A model this small is computed fastest by one thread.
    torch.set_num_threads(1)
    count = 4 if smoke else new_tokens
    prompt = AutoTokenizer.from_pretrained(TINY)(TEXT, return_tensors="pt").input_ids.to(device)
    with contextlib.ExitStack() as opened:
        models = {
            placement: opened.enter_context(load(TINY, placement=placement, device_map=device))
            for placement in PLACEMENTS[device]
        }
        tiers = {placement: bytes_by_tier(model) for placement, model in models.items()}
        models[BASELINE] = load_hugging_face(device)
        weight = models[BASELINE].model.layers[1].ple.ple_embedding.ngram_embedding.weight
        tiers[BASELINE] = {"device" if device == "cuda" else "host": weight.nbytes}
        yield Case(
            name=f"{count} greedy tokens of models/tiny",
            parameters={
                "device": device,
                "new_tokens": count,
                "prompt_tokens": prompt.shape[1],
                "torch_threads": torch.get_num_threads(),
                "tiers": json.dumps(tiers),
            },
            candidates={
                name: functools.partial(generate, model, prompt, count)
                for name, model in models.items()
            },
            baseline=BASELINE,
            check=functools.partial(compare, models, prompt, count),
            checked="every token and every logit equals resident Hugging Face's, bit for bit",
            moved_bytes=count * 16 * 16,
            cache_note="the same prompt in every run; disk rows in the page cache",
            timer=CpuTimer(once=True),
            num_samples=1 if smoke else 11,
        )


def compare(models: dict[str, Any], prompt: torch.Tensor, new_tokens: int) -> int:
    """Compares every model's logits with the baseline's; returns how many were equal.

    Raises:
        AssertionError: a logit or a token differs; names the placement.
    """
    expected = generate(models[BASELINE], prompt, new_tokens, logits=True)
    logits, compared = torch.stack(expected.logits), 0
    for name, model in models.items():
        found = generate(model, prompt, new_tokens, logits=True)
        same_tokens = torch.equal(found.sequences, expected.sequences)
        if not same_tokens or not torch.equal(torch.stack(found.logits), logits):
            raise AssertionError(f"{name}: logits differ from resident Hugging Face's")
        compared += logits.numel()
    return compared


def make_benchmark(options: argparse.Namespace | None = None) -> Benchmark:
    """Returns the benchmark with the options of a command line."""
    options = options or parser().parse_args([])
    device = choose_device(options.device)
    return Benchmark(
        name="end_to_end",
        build=functools.partial(build, device=device, new_tokens=options.new_tokens),
        sources=[
            "src/gramary/integrations/*.py", "src/gramary/reading/*.py", "src/gramary/table.py",
            "src/gramary/tiers/*.py", "benchmarks/end_to_end.py", "models/tiny/model.safetensors",
        ],
        needs=device,
    )  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Returns the options that are this benchmark's own."""
    made = argparse.ArgumentParser(prog="benchmarks.end_to_end", add_help=False)
    made.add_argument("--device", choices=sorted(PLACEMENTS), help="default: a GPU, if one is here")
    made.add_argument("--new-tokens", type=int, default=48)
    return made


# The CPU's, so that finding benchmarks asks no GPU.
BENCHMARK = make_benchmark(argparse.Namespace(device="cpu", new_tokens=48))

if __name__ == "__main__":
    own, rest = parser().parse_known_args()
    main(make_benchmark(own), rest, sys.argv[1:])
