"""A prefix cache: windows exported from inside one prefill serve requests that share the prefix."""

from collections.abc import Callable

import pytest
import torch
from stories.engine import MAX_REQUESTS, Engine, Oracle, Request

from gramary import ple
from gramary.errors import SlotError
from gramary.slots import WindowCheckpoint

POSITIONS = (1, 5, 8, 13)


def export(serving: Engine, request: Request, positions: tuple[int, ...]) -> list[WindowCheckpoint]:
    """Exports and publishes windows of the only request of the newest step."""
    kept = [
        serving.pool.checkpoint(request.slot, position, serving.history(request, position))
        for position in positions
    ]
    slots = torch.full((MAX_REQUESTS, len(kept)), -1)
    offsets = torch.zeros(slots.shape, dtype=torch.int32)
    slots[0] = torch.tensor([checkpoint.slot for checkpoint in kept])
    offsets[0] = torch.tensor([checkpoint.offset for checkpoint in kept])
    status = torch.zeros_like(offsets).to(serving.device)
    ple.export_checkpoint(
        serving.binding,
        offsets=offsets.to(serving.device),
        slots=slots.to(serving.device),
        status=status,
    )
    assert all(serving.pool.commit(*pair) for pair in zip(kept, status[0].tolist(), strict=True))
    return kept


def resume(
    serving: Engine, cold: Request, checkpoint: WindowCheckpoint, suffix: list[int]
) -> Request:
    """Starts a request behind a cached prefix of another."""
    position = checkpoint.position
    tokens = cold.tokens[:position] + suffix
    slot = serving.pool.restore(checkpoint, position, serving.history(cold, position))
    caches = {position: cold.caches[position]}
    return Request(tokens, len(tokens), slot, position, caches)


@pytest.mark.behaviour(26)
def test_a_hit_gives_what_a_miss_gives_at_every_offset(
    device: str,
    engine: Callable[..., Engine],
    oracle: Callable[..., Oracle],
    prompts: list[list[int]],
) -> None:
    """Behaviour 26: on from the very prefix, and with another ending."""
    serving, prompt = engine(device), prompts[0][:14]
    cold = serving.start(prompt)
    (logits,) = serving.step([(cold, len(prompt))])
    kept = export(serving, cold, POSITIONS)
    for checkpoint in kept:
        for suffix in (prompt[checkpoint.position :], prompts[2][3:7]):
            if not suffix:
                continue
            warm = resume(serving, cold, checkpoint, suffix)
            (found,) = serving.step([(warm, len(suffix))])
            expected = oracle(device).logits(warm.tokens)[checkpoint.position :]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            serving.pool.release(warm.slot)
    torch.testing.assert_close(logits, oracle(device).logits(prompt), rtol=1e-4, atol=1e-4)
    with pytest.raises(SlotError, match="look prefixes up by all their tokens"):
        serving.pool.restore(kept[1], 5, [1, 2])
    serving.pool.release(cold.slot)
    for checkpoint in kept:
        serving.pool.discard(checkpoint)


def test_another_server_takes_the_window_over(
    device: str, oracle: Callable[..., Oracle], prompts: list[list[int]]
) -> None:
    """As bytes, into a pool with another capacity."""
    prompt = prompts[1]
    with Engine(device, max_drafts=3) as first, Engine(device, max_drafts=0) as second:
        cold = first.start(prompt)
        first.step([(cold, 9)])
        (checkpoint,) = export(first, cold, (6,))
        blob = first.pool.export_blob(checkpoint)
        warm = resume(second, cold, second.pool.import_blob(blob), prompt[6:])
        (found,) = second.step([(warm, len(prompt) - 6)])
    torch.testing.assert_close(found, oracle(device).logits(prompt)[6:], rtol=1e-4, atol=1e-4)
