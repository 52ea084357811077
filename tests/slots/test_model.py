"""Kind 26: a pool against a dictionary; what it refuses changes nothing, what it takes is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ple_stage import Site, Stage

from gramary.errors import ArgumentError, SlotError
from gramary.ple import ExportStatus
from gramary.slots import SlotPool, WindowCheckpoint

NUM_SLOTS = 4
PROTECTED = 1
LAST = 2**63 - 1
POSITIONS = st.one_of(
    st.integers(-2, 24),
    st.sampled_from([2**31, 2**62, LAST - 1, LAST, 2**63, 2**64, 2**70, -(2**70)]),
)
HISTORIES = st.sampled_from([(5, 6), (5, 7), (5,), (1, 2, 3), (-1, 2), (2**63, 1), 5])
SLOTS = st.integers(-1, NUM_SLOTS)


class Model:
    """What a pool should be: slots to ("live", base, highest, end, start) or a checkpoint's key."""

    def __init__(self, drafts: int) -> None:
        self.reach = drafts + 1
        self.held: dict[int, tuple[Any, ...]] = {}

    def free(self) -> int | None:
        left = [s for s in range(NUM_SLOTS) if s != PROTECTED and s not in self.held]
        return left[0] if left else None

    def bounds(self, slot: int) -> range:
        kind, base, highest, end, _ = self.held.get(slot, ("none", 1, 0, 0, 0))
        return range(max(base, highest - self.reach), end + 1) if kind == "live" else range(0)


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(Site("cpu", "cpu"), num_slots=NUM_SLOTS)


def test_kind_26_an_impossible_position_is_refused_and_costs_no_slot(stage: Stage) -> None:
    """A run that ends beyond all positions was noted, and each snapshot there lost a slot."""
    pool = SlotPool(stage.caps, stage.binding.conv_state, history_length=2, model_id="m")
    slot = pool.acquire()
    for end in (2**63, 2**70):
        with pytest.raises(SlotError, match="num_tokens: expected 0 to"):
            pool.advance(slot, 0, end)
        for _ in range(3):
            with pytest.raises((SlotError, ArgumentError), match="position"):
                pool.snapshot(slot, end, (5, 6))
    assert pool.num_free == NUM_SLOTS - 1
    pool.advance(slot, 0, LAST)
    kept = pool.snapshot(slot, LAST, (5, 6))
    assert pool.restore(kept, LAST, (5, 6)) == 2
    assert pool.import_blob(pool.export_blob(kept)).position == LAST
    pool.check_integrity()


OPERATIONS = st.one_of(
    st.tuples(st.just("acquire")),
    st.tuples(st.just("release"), SLOTS),
    st.tuples(st.just("advance"), SLOTS, POSITIONS, POSITIONS),
    st.tuples(st.just("step"), SLOTS, st.integers(1, 6)),
    st.tuples(st.just("fork"), SLOTS, POSITIONS),
    st.tuples(st.just("snapshot"), SLOTS, POSITIONS, HISTORIES),
    st.tuples(st.just("checkpoint"), SLOTS, POSITIONS, HISTORIES),
    st.tuples(st.just("commit"), SLOTS, st.integers(-1, 7)),
    st.tuples(st.just("discard"), SLOTS),
    st.tuples(st.just("restore"), SLOTS, POSITIONS, HISTORIES),
    st.tuples(st.just("move"), SLOTS),
)


class Run:
    """A pool and its model, taken through the same operations."""

    def __init__(self, stage: Stage) -> None:
        state = stage.binding.conv_state.zero_()
        self.pool = SlotPool(
            stage.caps, state, history_length=2, model_id="m", protected=[PROTECTED]
        )
        self.model = Model(stage.caps.max_speculative_tokens)
        self.kept: dict[int, WindowCheckpoint] = {}
        self.stray = self._stray(stage)

    def _stray(self, stage: Stage) -> WindowCheckpoint:
        """Returns a checkpoint of another pool."""
        other = SlotPool(stage.caps, stage.binding.conv_state, history_length=2, model_id="m")
        return other.snapshot(other.acquire(), 0, (5, 6))

    def snapshot(self) -> tuple[Any, ...]:
        """Returns everything that a refused call must leave as it was."""
        pool = self.pool
        held = {
            slot: (h, h.state, h.offset) if isinstance(h, WindowCheckpoint) else h
            for slot, h in pool._held.items()
        }
        return held, pool.num_free, pool.live_slots, pool.conv_state.clone()

    def apply(self, operation: tuple[Any, ...]) -> None:
        name, *words = operation
        call, effect = getattr(self, name)(*words)
        before = self.snapshot()
        if effect is None:
            with pytest.raises((SlotError, ArgumentError)):
                call()
            after = self.snapshot()
            assert after[:3] == before[:3], operation
            assert torch.equal(after[3], before[3]), operation
        else:
            effect(call())
        self.pool.check_integrity()
        self.compare()

    def compare(self) -> None:
        held = {}
        for slot, holder in self.pool._held.items():
            if isinstance(holder, WindowCheckpoint):
                held[slot] = (holder.state.value, holder.position, holder.history)
            else:
                held[slot] = ("live", holder.base, holder.highest, holder.end, holder.start)
        assert held == self.model.held

    # Each returns the call and, where it is to be taken, what the model does then.

    def acquire(self) -> tuple[Callable[[], Any], Callable[[Any], None] | None]:
        slot = self.model.free()
        return self.pool.acquire, None if slot is None else self._live(slot, 0, 0, 0, 0)

    def _live(self, slot: int, *numbers: int) -> Callable[[Any], None]:
        def effect(got: Any) -> None:
            assert got == slot
            self.model.held[slot] = ("live", *numbers)

        return effect

    def _keep(self, state: str, position: int, history: Any) -> Callable[[Any], None] | None:
        slot = self.model.free()
        if slot is None or history not in ((5, 6), (5, 7)):
            return None

        def effect(got: WindowCheckpoint) -> None:
            assert got.slot == slot
            self.model.held[slot] = (state, position, history)
            self.kept[slot] = got

        return effect

    def _is(self, slot: int, *kinds: str) -> bool:
        return self.model.held.get(slot, ("free",))[0] in kinds

    def release(self, slot: int) -> Any:
        effect = (lambda _: self.model.held.pop(slot)) if self._is(slot, "live") else None
        return lambda: self.pool.release(slot), effect

    def advance(self, slot: int, start: int, num_tokens: int) -> Any:
        fits = start in self.model.bounds(slot) and 0 <= num_tokens <= LAST - start

        def effect(_: Any) -> None:
            _, base, highest, end, _ = self.model.held[slot]
            if num_tokens:
                end = start + num_tokens
                highest = max(highest, end)
            self.model.held[slot] = ("live", base, highest, end, start if num_tokens else end)

        return lambda: self.pool.advance(slot, start, num_tokens), effect if fits else None

    def step(self, slot: int, num_tokens: int) -> Any:
        end = self.model.held[slot][3] if self._is(slot, "live") else 0
        return self.advance(slot, end, num_tokens)

    def fork(self, slot: int, position: int) -> Any:
        target, effect = self.model.free(), None
        if target is not None and position in self.model.bounds(slot):
            _, base, highest, _, _ = self.model.held[slot]
            effect = self._live(target, base, highest, position, position)
        return lambda: self.pool.fork(slot, position), effect

    def snapshot_at(self, slot: int, position: int, history: Any) -> Any:
        fits = position in self.model.bounds(slot)
        effect = self._keep("committed", position, history) if fits else None
        return lambda: self.pool.snapshot(slot, position, history), effect

    def checkpoint(self, slot: int, position: int, history: Any) -> Any:
        effect = None
        if self._is(slot, "live"):
            _, _, _, end, start = self.model.held[slot]
            effect = self._keep("pending", position, history) if start < position <= end else None
        return lambda: self.pool.checkpoint(slot, position, history), effect

    def commit(self, slot: int, status: int) -> Any:
        handle = self.kept.get(slot, self.stray)
        fits = self._is(slot, "pending") and status in [int(s) for s in ExportStatus]

        def effect(got: bool) -> None:
            assert got == (status == ExportStatus.WRITTEN)
            _, position, history = self.model.held.pop(slot)
            if got:
                self.model.held[slot] = ("committed", position, history)

        call = lambda: self.pool.commit(handle, status)  # noqa: E731
        if fits:
            # What an export writes: zeros behind the window.
            self.pool.conv_state[slot] = 0
        return call, effect if fits else None

    def discard(self, slot: int) -> Any:
        handle = self.kept.get(slot, self.stray)
        fits = self._is(slot, "pending", "committed")
        effect = (lambda _: self.model.held.pop(slot)) if fits else None
        return lambda: self.pool.discard(handle), effect

    def restore(self, slot: int, position: int, history: Any) -> Any:
        handle = self.kept.get(slot, self.stray)
        if position < 0:
            # A prefix that is there, more often than chance would find it.
            position, history = handle.position, handle.history
        target = self.model.free()
        fits = self._is(slot, "committed") and self.model.held[slot][1:] == (position, history)
        effect = None
        if fits and target is not None:
            effect = self._live(target, *[position] * 4)
        return lambda: self.pool.restore(handle, position, history), effect

    def move(self, slot: int) -> Any:
        """Exports and imports; an import into a full pool is refused."""
        handle = self.kept.get(slot, self.stray)
        fits = self._is(slot, "committed")
        effect = self._keep(*self.model.held[slot]) if fits else None
        return lambda: self.pool.import_blob(self.pool.export_blob(handle)), effect


@given(operations=st.lists(OPERATIONS, max_size=25))
def test_kind_26_a_pool_is_its_model_and_refusals_change_nothing(
    stage: Stage, operations: list[tuple[Any, ...]]
) -> None:
    run = Run(stage)
    for name, *words in operations:
        run.apply(("snapshot_at" if name == "snapshot" else name, *words))


@pytest.mark.parametrize("cut", [0, 7, 60, -1])
def test_kind_26_a_blob_that_is_refused_takes_no_slot(stage: Stage, cut: int) -> None:
    run = Run(stage)
    run.apply(("acquire",))
    run.apply(("step", 0, 5))
    run.apply(("snapshot_at", 0, 5, (5, 6)))
    blob = run.pool.export_blob(run.kept[2])
    before = run.snapshot()
    for wrong in (blob[:cut], blob + b"x", blob.replace(b"m", b"n", 1)):
        with pytest.raises(SlotError):
            run.pool.import_blob(wrong)
        assert run.snapshot()[:3] == before[:3]
