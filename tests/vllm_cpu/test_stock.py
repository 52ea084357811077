"""Stock vLLM on a CPU, gramary not asked for: what the plugin's results are compared with."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_cpu.engine import STOCK, Run, request, run_engine
from vllm_cpu.environment import ON_PATH
from vllm_cpu.prompts import GREEDY_TOKENS, PROMPTS
from vllm_cpu.variants import HEAD_DIM, TINY

# Other shapes of products round otherwise: what two schedules may differ by, in nats.
SCHEDULES = 0.05
# Transformers' model computes the same layers in other steps.
MODELS = 0.1


def chosen(sample: dict[str, Any]) -> torch.Tensor:
    """Returns the log-probabilities of a sample's tokens."""
    pairs = zip(sample["token_ids"], sample["logprobs"], strict=True)
    return torch.tensor([listed[str(token)] for token, listed in pairs])


@pytest.mark.parametrize("name", ["fp8", "bf16"])
def test_tokens_are_those_known(stock_outputs: Callable[[str], Run], name: str) -> None:
    run = stock_outputs(name)
    alone = [turn["outputs"][0]["samples"][0]["token_ids"] for turn in run.rounds[:3]]
    assert alone == GREEDY_TOKENS
    assert [output["samples"][0]["token_ids"] for output in run.outputs(3)] == GREEDY_TOKENS
    assert run.left_over == []


def test_transformers_agrees(
    stock_outputs: Callable[[str], Run], variant: Callable[[str], Path]
) -> None:
    """Another implementation of the whole model, with the table as an embedding in memory."""
    model = load_in_transformers(variant("bf16"))
    for turn in stock_outputs("bf16").rounds[:3]:
        prompt, sample = turn["outputs"][0]["prompt_token_ids"], turn["outputs"][0]["samples"][0]
        tokens = torch.tensor([prompt + sample["token_ids"]])
        with torch.no_grad():
            logits = model(tokens).logits[0, len(prompt) - 1 : -1].float()
        expected = logits.log_softmax(-1)
        assert expected.argmax(-1).tolist() == sample["token_ids"]
        there = expected.gather(1, tokens[0, len(prompt) :, None])[:, 0]
        torch.testing.assert_close(chosen(sample), there, atol=MODELS, rtol=0)


def load_in_transformers(folder: Path) -> Any:
    """Returns the variant with an indexer as in models/tiny; it selects all of a short prompt."""
    sys.path.insert(0, str(ON_PATH))
    from cpu_platform import declare_image_operations

    declare_image_operations()
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(
        TINY,
        linear_key_head_dim=HEAD_DIM,
        linear_value_head_dim=HEAD_DIM,
        output_gate_type="silu",
    )
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.bfloat16)


def test_schedule_makes_no_difference(
    stock_outputs: Callable[[str], Run], variant: Callable[[str], Path], tmp_path: Path
) -> None:
    """Prompts in chunks, a chunk beside a request that decodes, and one that is aborted."""
    late = [
        request(PROMPTS[2], max_tokens=12),
        request(PROMPTS[0], after_steps=2),
        request(PROMPTS[1], after_steps=3, abort_after_tokens=2),
    ]
    rounds = [[request(prompt)] for prompt in PROMPTS] + [late]
    run = run_engine(variant("fp8"), rounds, tmp_path, max_num_batched_tokens=32, **STOCK)
    whole = [turn["outputs"][0]["samples"][0] for turn in stock_outputs("fp8").rounds[:3]]
    # Two chunks for the two long prompts.
    assert [turn["steps"] for turn in run.rounds[:3]] == [7, 7, 6]
    for turn, expected in zip(run.rounds[:3], whole, strict=True):
        sample = turn["outputs"][0]["samples"][0]
        assert sample["token_ids"] == expected["token_ids"]
        torch.testing.assert_close(chosen(sample), chosen(expected), atol=SCHEDULES, rtol=0)
    first, second, aborted = (output["samples"][0] for output in run.outputs(3))
    assert first["token_ids"][:6] == GREEDY_TOKENS[2]
    assert len(first["token_ids"]) == 12
    torch.testing.assert_close(chosen(second), chosen(whole[0]), atol=SCHEDULES, rtol=0)
    assert aborted["token_ids"] == GREEDY_TOKENS[1][:2]


def test_drafts_change_no_token(variant: Callable[[str], Path], tmp_path: Path) -> None:
    """Windows are rolled back over the tokens that were proposed in vain."""
    drafts = {"method": "mtp", "num_speculative_tokens": 2}
    rounds = [[request(prompt)] for prompt in PROMPTS] + [[request(prompt) for prompt in PROMPTS]]
    run = run_engine(variant("drafts"), rounds, tmp_path, speculative_config=drafts, **STOCK)
    assert [sample["token_ids"] for sample in run.samples()] == 2 * GREEDY_TOKENS
