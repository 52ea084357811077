"""A prompt in one piece, or cut anywhere: the same rows, windows and logits."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_engine import Engine
from stories.oracle import Oracle

CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@pytest.mark.behaviour(22)
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sizes=CUTS)
def test_any_chunking_gives_what_one_piece_gives(
    sizes: list[int],
    device: str,
    engine: Callable[..., Engine],
    oracle: Callable[..., Oracle],
    prompts: list[list[int]],
) -> None:
    """Behaviour 22: the logits of transformers, whatever the sizes of the pieces."""
    prompt = prompts[0]
    expected = oracle(device).logits(prompt)
    serving = engine(device)
    request, logits = serving.start(prompt), []
    while request.position < len(prompt):
        size = sizes[len(logits) % len(sizes)]
        logits += serving.step([(request, min(size, len(prompt) - request.position))])
    torch.testing.assert_close(torch.cat(logits), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.cat(logits).argmax(-1), expected.argmax(-1))
    serving.pool.check_integrity()
    serving.pool.release(request.slot)


def test_rows_of_the_pieces_are_rows_of_the_whole(
    device: str, engine: Callable[..., Engine], prompts: list[list[int]]
) -> None:
    """Bit for bit, at every cut: a piece knows what came before by its history."""
    serving, tokens = engine(device), prompts[0]
    ids = torch.tensor(tokens, device=device)
    whole = serving.table.embed(ids, bounds(len(ids), device), dtype=torch.uint8)
    request = serving.start(tokens)
    for cut in range(1, len(tokens)):
        history = torch.tensor([serving.history(request, cut)], device=device)
        rest = bounds(len(ids) - cut, device)
        piece = serving.table.embed(ids[cut:], rest, history, dtype=torch.uint8)
        assert torch.equal(piece, whole[cut:]), f"cut at {cut}"
    serving.pool.release(request.slot)


def bounds(length: int, device: str) -> torch.Tensor:
    """query_start_loc of one request."""
    return torch.tensor([0, length], dtype=torch.int32, device=device)
