"""Drafting and verifying: whatever is rejected, the text is that of plain greedy decoding."""

import itertools
from collections.abc import Callable

import pytest
import torch
from small_engine import Engine, Request
from stories.oracle import Oracle, greedy

COUNT = 14
# How many of three drafts are right, step after step.
RIGHT = (3, 0, 1, 2, 0, 0, 3, 1)


def draft(text: list[int], at: int, num_right: int) -> list[int]:
    """Three drafts of the text from `at` on, of which the first `num_right` are right."""
    drafts = text[at : at + 3]
    return drafts[:num_right] + [(token + 1) % 2048 for token in drafts[num_right:]]


def verify(serving: Engine, request: Request, drafts: list[int]) -> tuple[list[int], torch.Tensor]:
    """Runs the newest token and its drafts at once; returns the tokens that stand."""
    request.tokens += drafts
    (logits,) = serving.step([(request, 1 + len(drafts))])
    wanted = logits.argmax(-1).tolist()
    accepted = list(itertools.takewhile(lambda i: drafts[i] == wanted[i], range(len(drafts))))
    kept = [drafts[i] for i in accepted] + [wanted[len(accepted)]]
    serving.rewind(request, request.position - (len(drafts) - len(accepted)))
    return kept, logits[: len(kept)]


@pytest.mark.behaviour(24)
def test_accepted_and_rejected_drafts_leave_greedy_decodings_text(
    device: str,
    engine: Callable[..., Engine],
    oracle: Callable[..., Oracle],
    prompts: list[list[int]],
) -> None:
    """Behaviour 24: tokens and logits of a run that never drafted, after any rejections."""
    serving, prompt = engine(device), prompts[0]
    text = oracle(device).continue_greedily(prompt, COUNT + 4)
    request = serving.start(prompt)
    (logits,) = serving.step([(request, len(prompt))])
    written, steps = [greedy(logits[-1])], [logits]
    for number in itertools.count():
        if len(written) >= COUNT:
            break
        request.tokens.append(written[-1])
        drafts = draft(text, len(written), RIGHT[number % len(RIGHT)])
        kept, logits = verify(serving, request, drafts)
        assert len(kept) >= 1 + RIGHT[number % len(RIGHT)]
        written += kept
        steps.append(logits)
    assert written[:COUNT] == text[:COUNT]
    assert request.tokens == prompt + written[:-1]
    expected = oracle(device).logits(request.tokens)
    torch.testing.assert_close(torch.cat(steps), expected, rtol=1e-4, atol=1e-4)
    serving.pool.check_integrity()
    serving.pool.release(request.slot)
