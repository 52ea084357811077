"""Requests of different lengths, prefilling and decoding in one batch, as if each were alone."""

from collections.abc import Callable

import pytest
import torch
from small_engine import Engine
from stories.oracle import Oracle, greedy

# Tokens that each of three requests runs in each step; 0 sits a step out.
STEPS = [(7, 0, 2), (1, 5, 3), (0, 4, 0), (3, 1, 9), (2, 3, 1), (4, 0, 1)]


@pytest.mark.behaviour(22, 23)
def test_requests_never_see_each_other(
    device: str,
    engine: Callable[..., Engine],
    oracle: Callable[..., Oracle],
    prompts: list[list[int]],
) -> None:
    """Behaviours 22 and 23: whatever else is in a batch, and in any order."""
    serving = engine(device)
    requests = [serving.start(prompt) for prompt in prompts]
    logits: list[list[torch.Tensor]] = [[] for _ in requests]
    for number, sizes in enumerate(STEPS):
        work = [(index, size) for index, size in enumerate(sizes) if size]
        if number % 2:
            work.reverse()
        parts = serving.step([(requests[index], size) for index, size in work])
        for (index, _), part in zip(work, parts, strict=True):
            logits[index].append(part)
    for request, prompt, parts in zip(requests, prompts, logits, strict=True):
        expected = oracle(device).logits(prompt[: request.position])
        torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-4, atol=1e-4)
        serving.pool.release(request.slot)
    serving.pool.check_integrity()


def test_prompts_and_generations_in_one_batch(
    device: str,
    engine: Callable[..., Engine],
    oracle: Callable[..., Oracle],
    prompts: list[list[int]],
) -> None:
    """One request writes while another is still reading its prompt."""
    serving, count = engine(device), 5
    writer, reader = serving.start(prompts[1]), serving.start(prompts[2])
    (logits,) = serving.step([(writer, len(prompts[1]))])
    written = [greedy(logits[-1])]
    for _ in range(count - 1):
        writer.tokens.append(written[-1])
        logits, _ = serving.step([(writer, 1), (reader, 2)])
        written.append(greedy(logits[-1]))
    assert written == oracle(device).continue_greedily(prompts[1], count)
    for request in (writer, reader):
        serving.pool.release(request.slot)
