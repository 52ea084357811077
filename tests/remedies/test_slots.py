"""Kind 16: what the errors of window slots and of a layer's state advise, followed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from ple_stage import Site, Stage

from gramary import PLELayer
from gramary.errors import SlotError, UnsupportedError
from gramary.layer import PLEState
from gramary.ple import ExportStatus
from gramary.slots import SlotPool

HISTORY = (5, 6)


@pytest.fixture
def stage() -> Stage:
    made = Stage(Site("cpu", "cpu"), num_slots=4)
    made.binding.conv_state.zero_()
    return made


@pytest.fixture
def pool(stage: Stage) -> SlotPool:
    return make_pool(stage)


def make_pool(stage: Stage) -> SlotPool:
    return SlotPool(stage.caps, stage.binding.conv_state, history_length=2, model_id="m")


@pytest.mark.remedy("release a request or discard a checkpoint")
@pytest.mark.parametrize("remedy", ["release", "discard"])
def test_kind_16_no_slot_is_free(pool: SlotPool, remedy: str) -> None:
    slots = [pool.acquire() for _ in range(3)]
    kept = pool.snapshot(slots[0], 0, HISTORY)
    with pytest.raises(SlotError, match="release a request or discard a checkpoint"):
        pool.acquire()
    pool.release(slots[1]) if remedy == "release" else pool.discard(kept)
    assert pool.acquire() in (slots[1], kept.slot)


@pytest.mark.remedy("note the run with advance() first, or take a snapshot()")
@pytest.mark.parametrize("remedy", ["advance", "snapshot"])
def test_kind_16_a_checkpoint_that_no_run_reaches(pool: SlotPool, remedy: str) -> None:
    slot = pool.acquire()
    if remedy == "snapshot":
        pool.advance(slot, 0, 5)
        pool.advance(slot, 5, 0)
    with pytest.raises(SlotError, match="note the run with advance"):
        pool.checkpoint(slot, 5, HISTORY)
    if remedy == "advance":
        pool.advance(slot, 0, 5)
        assert pool.commit(pool.checkpoint(slot, 5, HISTORY), ExportStatus.WRITTEN)
    else:
        assert pool.snapshot(slot, 5, HISTORY).position == 5


@pytest.mark.remedy("look prefixes up by all their tokens")
def test_kind_16_a_checkpoint_of_another_prefix(pool: SlotPool) -> None:
    """Two prefixes of one length; a cache that keys on all tokens finds the right one."""
    cache = {}
    for tokens in ((1, 5, 6), (2, 6, 5)):
        slot = pool.acquire()
        pool.advance(slot, 0, 3)
        cache[tokens] = pool.snapshot(slot, 3, tokens[-2:])
        pool.release(slot)
    with pytest.raises(SlotError, match="look prefixes up by all their tokens"):
        pool.restore(cache[1, 5, 6], 3, (6, 5))
    assert pool.restore(cache[2, 6, 5], 3, (6, 5)) in pool.live_slots


@pytest.mark.remedy("take one with acquire(), fork() or restore()")
@pytest.mark.parametrize("remedy", ["acquire", "fork", "restore"])
def test_kind_16_a_slot_that_is_no_requests(pool: SlotPool, remedy: str) -> None:
    slot = pool.acquire()
    pool.advance(slot, 0, 4)
    kept = pool.snapshot(slot, 4, HISTORY)
    for wrong in (kept.slot, 3):
        with pytest.raises(SlotError, match="take one with acquire"):
            pool.advance(wrong, 0, 1)
    taken = {
        "acquire": pool.acquire,
        "fork": lambda: pool.fork(slot, 4),
        "restore": lambda: pool.restore(kept, 4, HISTORY),
    }[remedy]()
    pool.advance(taken, 0 if remedy == "acquire" else 4, 1)


@pytest.mark.remedy("move a window with export_blob() and import_blob()")
def test_kind_16_a_pool_that_cannot_be_copied(stage: Stage, pool: SlotPool) -> None:
    with pytest.raises(UnsupportedError, match=r"move a window with export_blob\(\)"):
        copy.deepcopy(pool)
    other = make_pool(Stage(stage.site, num_slots=2))
    kept = pool.snapshot(pool.acquire(), 0, HISTORY)
    moved = other.import_blob(pool.export_blob(kept))
    assert other.restore(moved, 0, HISTORY) in other.live_slots


@pytest.mark.remedy(
    "move another pool's with export_blob() and import_blob(), and make a new one of a discarded",
    "its slot may hold another window; make a new one",
)
def test_kind_16_a_checkpoint_that_is_not_here(stage: Stage, pool: SlotPool) -> None:
    other = make_pool(Stage(stage.site, num_slots=2))
    slot = other.acquire()
    kept = other.snapshot(slot, 0, HISTORY)
    with pytest.raises(SlotError, match="move another pool's with export_blob"):
        pool.restore(kept, 0, HISTORY)
    moved = pool.import_blob(other.export_blob(kept))
    assert pool.restore(moved, 0, HISTORY) in pool.live_slots
    other.discard(kept)
    with pytest.raises(SlotError, match="its slot may hold another window; make a new one"):
        other.restore(kept, 0, HISTORY)
    again = other.snapshot(slot, 0, HISTORY)
    other.release(slot)
    assert other.restore(again, 0, HISTORY) == slot


@pytest.mark.remedy("read its status and commit() it")
def test_kind_16_a_checkpoint_that_is_pending(pool: SlotPool) -> None:
    slot = pool.acquire()
    pool.advance(slot, 0, 4)
    kept = pool.checkpoint(slot, 3, HISTORY)
    with pytest.raises(SlotError, match="read its status and commit"):
        pool.restore(kept, 3, HISTORY)
    pool.commit(kept, ExportStatus.WRITTEN)
    assert pool.restore(kept, 3, HISTORY) in pool.live_slots


@pytest.mark.remedy(
    "run the tokens from {self.end} on first",
    "release it and restore a window checkpoint at or before that position",
    "release it and restore a window checkpoint, or run the request again from 0",
)
def test_kind_16_positions_out_of_bounds(pool: SlotPool) -> None:
    slot = pool.acquire()
    pool.advance(slot, 0, 10)
    kept = pool.snapshot(slot, 8, HISTORY)
    with pytest.raises(SlotError, match="run the tokens from 10 on first"):
        pool.advance(slot, 12, 1)
    pool.advance(slot, 10, 2)
    pool.advance(slot, 12, 1)
    with pytest.raises(SlotError, match="bounds a rollback; release it and restore a window"):
        pool.advance(slot, 8, 1)
    pool.release(slot)
    warm = pool.restore(kept, 8, HISTORY)
    pool.advance(warm, 8, 1)
    with pytest.raises(SlotError, match="restore a window checkpoint at or before"):
        pool.advance(warm, 7, 1)
    pool.release(warm)
    pool.advance(pool.restore(kept, 8, HISTORY), 8, 1)
    again = pool.acquire()
    pool.advance(again, 0, 9)


@pytest.mark.remedy("runs take slots of acquire(), fork() or restore() only")
def test_kind_16_a_run_in_a_checkpoints_slot(pool: SlotPool) -> None:
    slot = pool.acquire()
    kept = pool.snapshot(slot, 0, HISTORY)
    pool.conv_state[kept.slot] = 1
    with pytest.raises(SlotError, match="runs take slots of acquire"):
        pool.check_integrity()
    pool.discard(kept)
    for taken in (pool.acquire(), pool.fork(slot, 0)):
        pool.conv_state[taken] = 1
        pool.check_integrity()


@pytest.mark.remedy("transfer it again", "export it with this release")
def test_kind_16_a_blob_that_was_spoiled_on_its_way(pool: SlotPool) -> None:
    blob = pool.export_blob(pool.snapshot(pool.acquire(), 0, HISTORY))
    old = blob[:8] + (9).to_bytes(4, "little") + blob[12:]
    for spoiled, remedy in (
        (blob[:-3], "transfer it again"),
        (blob[:-9] + b"x" + blob[-8:], "transfer it again"),
        (old, "export it with this release"),
    ):
        with pytest.raises(SlotError, match=remedy):
            pool.import_blob(spoiled)
    assert pool.import_blob(bytes(blob)).position == 0


@pytest.fixture(scope="module")
def layer(make_checkpoint: Callable[..., Path]) -> Iterator[PLELayer]:
    module = PLELayer.from_checkpoint(make_checkpoint(codec="bf16"))
    yield module
    assert module.table is not None
    module.table.close()


@pytest.mark.remedy("begin its requests again with new_state(), or from a restored window")
@pytest.mark.parametrize("remedy", ["new_state", "restored"])
def test_kind_16_a_state_whose_forward_broke_off(layer: PLELayer, remedy: str) -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(30, layer.geometry.channels, generator=generator).to(layer.dtype)
    tokens = torch.randint(50, (30,), generator=generator)
    starts = torch.tensor([0, 30], dtype=torch.int32)
    state = layer.new_state(1)
    expected = layer(hidden, tokens, starts, state=layer.new_state(1))
    head = torch.tensor([0, 10], dtype=torch.int32)
    layer(hidden[:10], tokens[:10], head, state=state)
    kept = state.conv_state.clone()
    state.begin_run(torch.tensor([0, 20], dtype=torch.int32), 20)
    state.conv_state.fill_(7)
    tail = torch.tensor([0, 20], dtype=torch.int32)
    with pytest.raises(SlotError, match="begin its requests again with new_state"):
        layer(hidden[10:], tokens[10:], tail, state=state)
    if remedy == "new_state":
        out = layer(hidden, tokens, starts, state=layer.new_state(1))
        assert torch.equal(out, expected)
        return
    restored = PLEState(
        layer.geometry,
        kept,
        torch.zeros(1, dtype=torch.int64),
        torch.full((1,), 10),
        history=tokens[10 - layer.geometry.spec.history_length : 10][None],
    )
    assert torch.equal(layer(hidden[10:], tokens[10:], tail, state=restored), expected[10:])
