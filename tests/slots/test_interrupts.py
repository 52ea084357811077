"""Kind 15: a call of a slot pool that is interrupted, at any place, holds no slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from interrupts import interrupt_everywhere
from ple_stage import Site, Stage

from gramary.ple import ExportStatus
from gramary.slots import SlotPool, WindowCheckpoint

HISTORY = (5, 6)
NUM_SLOTS = 6


class Scene:
    """A pool with one request at position 12 and a checkpoint of each kind of it.

    Attributes:
        slot: the request's.
        kept: a committed checkpoint at 11.
        pending: a pending one at 10.
        blob: another's, at 12.
    """

    def __init__(self, stage: Stage) -> None:
        state = stage.binding.conv_state.fill_(1.0)
        self.pool = SlotPool(stage.caps, state, history_length=2, model_id="m", protected=[3])
        self.slot = self.pool.acquire()
        self.pool.advance(self.slot, 0, 12)
        self.kept = self.pool.snapshot(self.slot, 11, HISTORY)
        self.pending = self.pool.checkpoint(self.slot, 10, HISTORY)
        state[self.pending.slot] = 0
        self.blob = self.pool.export_blob(self.kept)


# What each call may leave besides what was there before it: nothing, or its effect in full.
CALLS: dict[str, Callable[[Scene], object]] = {
    "acquire": lambda scene: scene.pool.acquire(),
    "fork": lambda scene: scene.pool.fork(scene.slot, 11),
    "restore": lambda scene: scene.pool.restore(scene.kept, 11, HISTORY),
    "checkpoint": lambda scene: scene.pool.checkpoint(scene.slot, 9, HISTORY),
    "snapshot": lambda scene: scene.pool.snapshot(scene.slot, 12, HISTORY),
    "import_blob": lambda scene: scene.pool.import_blob(scene.blob),
    "export_blob": lambda scene: scene.pool.export_blob(scene.kept),
    "release": lambda scene: scene.pool.release(scene.slot),
    "discard": lambda scene: scene.pool.discard(scene.kept),
    "commit": lambda scene: scene.pool.commit(scene.pending, ExportStatus.WRITTEN),
    "commit, not written": lambda scene: scene.pool.commit(scene.pending, ExportStatus.BAD_OFFSET),
    "advance": lambda scene: scene.pool.advance(scene.slot, 12, 3),
}
TAKES = ("acquire", "fork", "restore", "checkpoint", "snapshot", "import_blob")


def book(pool: SlotPool) -> dict[int, Any]:
    """Returns who holds which slot; of a checkpoint what it is."""
    return {
        slot: (holder.position, holder.history, holder.state)
        if isinstance(holder, WindowCheckpoint)
        else holder
        for slot, holder in pool._held.items()
    }


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(Site("cpu", "cpu"), num_slots=NUM_SLOTS)


@pytest.mark.parametrize("name", CALLS)
def test_kind_15_an_interrupted_call_holds_no_slot(stage: Stage, name: str) -> None:
    """Either nothing was done, or all of it; a call that gives a slot to its caller did nothing."""
    scenes: list[Scene] = []

    def before() -> None:
        scenes[:] = [Scene(stage)]

    before()
    untouched = book(scenes[0].pool)
    CALLS[name](scenes[0])
    done = book(scenes[0].pool)
    is_through: list[bool] = []

    def call() -> None:
        is_through[:] = [False]
        CALLS[name](scenes[0])
        is_through[:] = [True]

    def check() -> None:
        pool = scenes[0].pool
        pool.check_integrity()
        allowed = [done] if is_through[0] else [untouched] if name in TAKES else [untouched, done]
        assert book(pool) in allowed
        # As many fresh slots as the book says, each once, none of them the protected one.
        fresh = [pool.acquire() for _ in range(pool.num_free)]
        assert len(set(fresh)) == len(fresh) == NUM_SLOTS - 1 - len(book(pool)) + len(fresh)
        assert pool.num_free == 0
        assert 3 not in fresh
        for slot in pool.live_slots:
            pool.release(slot)
        pool.check_integrity()

    assert interrupt_everywhere(call, check, before=before) > 5


def test_kind_15_a_pool_that_is_interrupted_often_keeps_its_slots_and_its_size(
    stage: Stage,
) -> None:
    scene = Scene(stage)
    pool, free = scene.pool, scene.pool.num_free
    for _ in range(3):
        interrupt_everywhere(
            lambda: pool.release(pool.acquire()),
            lambda: [pool.release(slot) for slot in pool.live_slots if slot != scene.slot],
        )
        assert pool.num_free == free
    for _ in range(100):
        pool.release(pool.acquire())
    assert len(pool._candidates) < 3 * NUM_SLOTS
    pool.check_integrity()
