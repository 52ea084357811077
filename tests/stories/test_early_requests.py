"""Rows of a prompt asked for while the chunk before still runs, or not: nobody can tell."""

from collections.abc import Callable

import pytest
import torch
from small_engine import TINY
from stories.oracle import Oracle, PatientEngine

from gramary.integrations.transformers import load

CHUNK = 6


@pytest.mark.parametrize(
    ("worker", "early"), [("thread", True), ("thread", False), ("process", True)]
)
def test_chunks_asked_for_one_ahead(
    early: bool,
    worker: str,
    device: str,
    oracle: Callable[..., Oracle],
    prompts: list[list[int]],
) -> None:
    prompt = prompts[0]
    starts = range(0, len(prompt), CHUNK)
    options = {"worker": worker, "prefill_early_request": early}
    with PatientEngine(device, placement="host=1MiB,disk", **options) as serving:
        request, logits = serving.start(prompt), []
        sizes = [min(CHUNK, len(prompt) - start) for start in starts]
        tickets = [serving.ask([(request, sizes[0])])]
        for index, size in enumerate(sizes):
            if early and index + 1 < len(sizes):
                ahead = serving.ask([(request, sizes[index + 1])], [starts[index + 1]])
                tickets.append(ahead)
            elif index + 1 < len(sizes):
                # One slot a stream: a request is made when the one before was awaited.
                tickets.append(None)
            logits += serving.step([(request, size)], tickets[index])
        stats = serving.connector.stats()
    torch.testing.assert_close(
        torch.cat(logits), oracle(device).logits(prompt), rtol=1e-4, atol=1e-4
    )
    lane = "host" if early else "stream"
    assert sum(stats["lanes"].values()) == len(sizes)
    assert all(name.startswith(lane) for name in stats["lanes"])
    assert stats[f"{lane}_requests"] == len(sizes)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_generate_cannot_tell_either(
    chunk: int, device: str, oracle: Callable[..., Oracle], prompts: list[list[int]]
) -> None:
    """Bit for bit what transformers' own model gives with the same chunks."""
    twin = oracle(device, torch.bfloat16).model
    ids = torch.tensor([prompts[2]], device=device)
    words = {
        "attention_mask": torch.ones_like(ids),
        "prefill_chunk_size": chunk,
        "max_new_tokens": 5,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    expected = twin.generate(ids, **words)
    for early in (True, False):
        options = {"prefill_early_request": early, "device_map": device}
        with load(TINY, placement="disk", **options) as model:
            found = model.generate(ids, **words)
        assert torch.equal(found.sequences, expected.sequences), early
        assert torch.equal(torch.stack(found.logits), torch.stack(expected.logits)), early
