"""A request is forked: both share what came before, and then each goes its own way."""

from collections.abc import Callable

import pytest
import torch
from small_engine import Engine
from stories.oracle import Oracle, greedy

from gramary.errors import SlotError


@pytest.mark.behaviour(23)
def test_branches_share_their_past_and_nothing_else(
    device: str,
    engine: Callable[..., Engine],
    oracle: Callable[..., Oracle],
    prompts: list[list[int]],
) -> None:
    """Behaviour 23: four branches of one prompt, two of them from a few tokens back."""
    serving, prompt = engine(device), prompts[2]
    trunk = serving.start(prompt)
    (logits,) = serving.step([(trunk, len(prompt))])
    branches = [trunk, serving.fork(trunk, len(prompt))]
    branches += [serving.fork(trunk, len(prompt) - back) for back in (1, 3)]
    # The trunk goes on greedily, the others with verses of their own.
    tails = [[greedy(logits[-1]), 7], prompts[0][:5], prompts[1][:4], prompts[1][4:7]]
    for branch, tail in zip(branches, tails, strict=True):
        branch.tokens += tail
    found: list[list[torch.Tensor]] = [[] for _ in branches]
    for step in range(max(map(len, tails))):
        work = [(branches[i], 1) for i, tail in enumerate(tails) if step < len(tail)]
        for (branch, _), part in zip(work, serving.step(work), strict=True):
            found[branches.index(branch)].append(part)
    for branch, tail, parts in zip(branches, tails, found, strict=True):
        expected = oracle(device).logits(branch.tokens)[-len(tail) :]
        torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(SlotError, match="position"):
        serving.fork(trunk, 2)
    for branch in branches:
        serving.pool.release(branch.slot)
    serving.pool.check_integrity()
