"""A prefix-cache story: checkpoints inside a long prefill, warm requests that equal cold ones."""

import pytest
import torch
from ple_stage import SITES, Request, Site, Stage, assert_same_bits, draw_request

from gramary import ple
from gramary.slots import SlotPool, WindowCheckpoint

PROMPT = 8192
CHUNK = 2048
BOUNDARY = 512


def cut(request: Request, begin: int, end: int) -> Request:
    """Some tokens of a request that starts at 0."""
    tokens = slice(begin, end)
    inputs = (request.residual[tokens], request.key[tokens], request.value[tokens])
    return Request(request.slot, begin, *inputs)


def histories(position: int) -> tuple[int, ...]:
    """What this story's prompts have before a position: token ids are positions."""
    return tuple(position - step for step in (2, 1))


@pytest.mark.behaviour(22, 26)
@pytest.mark.parametrize("site", SITES)
def test_warm_requests_continue_as_cold_ones(site: Site) -> None:
    """Behaviour 26, and 22 for the chunks: a hit at every exported boundary equals a miss.

    An 8192-token prompt is prefilled in chunks; every 512 tokens a window is exported from inside
    the chunk. Then warm requests resume from each of them, several in one batch.
    """
    if site.backend == "triton" and site.device == "cpu":
        pytest.skip("8192 tokens take too long in the interpreter; the schedules resume there")
    stage = Stage(
        site, dtype=torch.bfloat16, max_tokens=CHUNK, max_seqs=4, num_slots=24, hidden_size=16
    )
    caps = stage.caps
    pool = SlotPool(caps, stage.binding.conv_state, history_length=2, model_id="m")
    cold = draw_request(caps, pool.acquire(), 0, PROMPT)
    outs, kept = [], []
    for begin in range(0, PROMPT, CHUNK):
        pool.advance(cold.slot, begin, CHUNK)
        stage.load([cut(cold, begin, begin + CHUNK)])
        outs.append(stage.run().clone())
        kept += export_boundaries(stage, pool, cold.slot, begin)
    expected = torch.cat(outs)
    pool.release(cold.slot)
    assert len(kept) == PROMPT // BOUNDARY
    pool.check_integrity()
    for group in (kept[:4], kept[4:8], kept[8:12], kept[12:15]):
        batch, spans = [], []
        for checkpoint in group:
            position = checkpoint.position
            end = min(position + BOUNDARY, PROMPT)
            slot = pool.restore(checkpoint, position, histories(position))
            pool.advance(slot, position, end - position)
            warm = cut(cold, position, end)
            batch.append(Request(slot, position, warm.residual, warm.key, warm.value))
            spans.append(expected[position:end])
        stage.load(batch)
        out = stage.run()[: sum(len(span) for span in spans)]
        assert_same_bits(out.cpu(), torch.cat(spans).cpu(), "continuation")
        for request in batch:
            pool.release(request.slot)
    pool.check_integrity()


def export_boundaries(
    stage: Stage, pool: SlotPool, slot: int, begin: int
) -> list[WindowCheckpoint]:
    """Exports and commits the windows at every boundary of the chunk that was just run."""
    positions = range(begin + BOUNDARY, begin + CHUNK + 1, BOUNDARY)
    kept = [pool.checkpoint(slot, position, histories(position)) for position in positions]
    slots = torch.full((stage.caps.max_seqs, len(kept)), -1)
    offsets = torch.zeros(slots.shape, dtype=torch.int32)
    slots[0] = torch.tensor([checkpoint.slot for checkpoint in kept])
    offsets[0] = torch.tensor([checkpoint.offset for checkpoint in kept])
    device = stage.caps.device
    status = torch.zeros(slots.shape, dtype=torch.int32, device=device)
    ple.export_checkpoint(
        stage.binding, offsets=offsets.to(device), slots=slots.to(device), status=status
    )
    assert all(pool.commit(*pair) for pair in zip(kept, status[0].tolist(), strict=True))
    return kept
