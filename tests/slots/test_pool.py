"""SlotPool: stories with small integers, and every misuse."""

import numpy as np
import pytest
import torch
from ple_stage import Site, Stage, assert_same_bits, draw_request

from gramary import ple
from gramary.errors import ArgumentError, SlotError
from gramary.ple import ExportStatus
from gramary.slots import SlotPool, WindowCheckpoint

HISTORY = (5, 6)


@pytest.fixture
def stage() -> Stage:
    return Stage(Site("cpu", "cpu"), num_slots=6)


@pytest.fixture
def pool(stage: Stage) -> SlotPool:
    return make_pool(stage)


def make_pool(stage: Stage, **options: object) -> SlotPool:
    options = {"history_length": 2, "model_id": "m", **options}
    return SlotPool(stage.caps, stage.binding.conv_state, **options)


def run(stage: Stage, pool: SlotPool, slot: int, start: int, num_tokens: int) -> torch.Tensor:
    """One request's run, noted first; returns its outputs."""
    pool.advance(slot, start, num_tokens)
    stage.load([draw_request(stage.caps, slot, start, num_tokens)])
    return stage.run()[:num_tokens].clone()


def export(stage: Stage, kept: WindowCheckpoint) -> int:
    slots = torch.full((stage.caps.max_seqs,), -1)
    offsets = torch.zeros(stage.caps.max_seqs, dtype=torch.int32)
    slots[0], offsets[0] = kept.slot, kept.offset
    status = torch.empty_like(offsets)
    ple.export_checkpoint(stage.binding, offsets=offsets, slots=slots, status=status)
    return int(status[0])


def window(stage: Stage, slot: int, position: int) -> torch.Tensor:
    return ple.to_chronological(stage.binding.conv_state[slot], position, stage.caps.state_length)


def test_slots_are_handed_out_once(pool: SlotPool) -> None:
    slots = [pool.acquire() for _ in range(6)]
    assert sorted(slots) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(SlotError, match=r"no slot of 6 is free \(6 requests, 0 checkpoints"):
        pool.acquire()
    pool.release(4)
    pool.release(2)
    assert (pool.acquire(), pool.num_free, pool.live_slots) == (2, 1, (0, 1, 2, 3, 5))
    pool.check_integrity()


def test_protected_slots_are_never_handed_out(stage: Stage) -> None:
    pool = make_pool(stage, protected=[0, 3])
    assert [pool.acquire() for _ in range(4)] == [1, 2, 4, 5]
    with pytest.raises(SlotError, match=r"4 requests, 0 checkpoints, 2 protected"):
        pool.acquire()
    pool.check_integrity()


def test_bounds_of_a_rollback(pool: SlotPool) -> None:
    """With two drafts, the next start lies at most three below the highest position run."""
    slot = pool.acquire()
    pool.advance(slot, 0, 10)
    with pytest.raises(SlotError, match=r"expected a position from 7 to 10, got 6; max_specul"):
        pool.advance(slot, 6, 1)
    with pytest.raises(SlotError, match=r"from 7 to 10, got 11; run the tokens from 10 on first"):
        pool.advance(slot, 11, 1)
    pool.advance(slot, 8, 1)
    # Position 9 is stale now, and 7 is still as far back as the columns reach.
    with pytest.raises(SlotError, match="from 7 to 9, got 10"):
        pool.advance(slot, 10, 1)
    pool.advance(slot, 7, 1)
    with pytest.raises(SlotError, match="from 7 to 8, got 6"):
        pool.advance(slot, 6, 9)
    pool.advance(slot, 8, 0)
    pool.advance(slot, 8, 7)
    with pytest.raises(SlotError, match="from 12 to 15, got 11"):
        pool.advance(slot, 11, 1)
    pool.check_integrity()


def test_the_bound_is_the_last_one_that_is_right(stage: Stage, pool: SlotPool) -> None:
    """At the bound the window is whole; one below, it is not: the bound is exact."""
    slot, alone = pool.acquire(), pool.acquire()
    run(stage, pool, slot, 0, 20)
    run(stage, pool, alone, 0, 17)
    assert_same_bits(window(stage, slot, 17), window(stage, alone, 17), "window")
    pool.release(alone)
    alone = pool.acquire()
    run(stage, pool, alone, 0, 16)
    assert not torch.equal(window(stage, slot, 16), window(stage, alone, 16))


def test_a_restored_request_rolls_back_no_further_than_its_prefix(
    stage: Stage, pool: SlotPool
) -> None:
    slot = pool.acquire()
    run(stage, pool, slot, 0, 8)
    kept = pool.snapshot(slot, 8, HISTORY)
    warm = pool.restore(kept, 8, HISTORY)
    pool.advance(warm, 8, 2)
    pool.advance(warm, 8, 1)
    with pytest.raises(SlotError, match="from 8 to 9, got 7; release it and restore"):
        pool.advance(warm, 7, 1)


@pytest.mark.behaviour(23)
def test_a_fork_shares_its_prefix_and_goes_its_own_way(stage: Stage, pool: SlotPool) -> None:
    """Behaviour 23: a fork's window is the prefix's; later tokens of one do not reach the other."""
    slot = pool.acquire()
    run(stage, pool, slot, 0, 12)
    fork = pool.fork(slot, 11)
    assert_same_bits(window(stage, fork, 11), window(stage, slot, 11), "window")
    before = window(stage, slot, 12)
    pool.advance(fork, 11, 4)
    stage.load([draw_request(stage.caps, fork, 11, 4, seed=9)])
    stage.run()
    assert_same_bits(window(stage, slot, 12), before, "the first")
    own = pool.acquire()
    run(stage, pool, own, 0, 11)
    pool.advance(own, 11, 4)
    stage.load([draw_request(stage.caps, own, 11, 4, seed=9)])
    stage.run()
    assert_same_bits(window(stage, fork, 15), window(stage, own, 15), "the fork")
    pool.check_integrity()


@pytest.mark.behaviour(26)
def test_a_checkpoint_is_pending_until_it_was_read_as_written(stage: Stage, pool: SlotPool) -> None:
    """Behaviour 26: a resumed request continues as a cold one; a failed export is never offered."""
    slot = pool.acquire()
    cold = run(stage, pool, slot, 0, 14)
    kept = pool.checkpoint(slot, 9, HISTORY)
    assert (kept.offset, pool.num_free) == (9, 4)
    with pytest.raises(SlotError, match="expected committed, got pending; read its status and"):
        pool.restore(kept, 9, HISTORY)
    assert pool.commit(kept, export(stage, kept))
    pool.release(slot)
    warm = pool.restore(kept, 9, HISTORY)
    assert_same_bits(run(stage, pool, warm, 9, 5), cold[9:], "out")
    pool.check_integrity()
    failed = pool.checkpoint(warm, 12, HISTORY)
    assert not pool.commit(failed, ExportStatus.BAD_OFFSET)
    assert pool.num_free == 4
    with pytest.raises(SlotError, match="got discarded; its slot may hold another window"):
        pool.restore(failed, 12, HISTORY)
    pool.discard(kept)
    with pytest.raises(SlotError, match="expected pending or committed, got discarded"):
        pool.discard(kept)
    pool.check_integrity()


def test_a_checkpoint_is_restored_for_its_own_prefix_only(stage: Stage, pool: SlotPool) -> None:
    slot = pool.acquire()
    run(stage, pool, slot, 0, 5)
    kept = pool.snapshot(slot, 4, HISTORY)
    for position, history in ((5, HISTORY), (4, (6, 5)), (4, (6,))):
        with pytest.raises(SlotError, match="look prefixes up by all their tokens"):
            pool.restore(kept, position, history)
    assert pool.num_free == 4


@pytest.mark.parametrize("drafts", [0, 2, 5])
@pytest.mark.parametrize("position", [4, 14])
def test_a_blob_moves_to_a_pool_of_another_capacity(
    stage: Stage, pool: SlotPool, drafts: int, position: int
) -> None:
    """Prefill and decode on different machines, with different numbers of drafts."""
    slot = pool.acquire()
    cold = run(stage, pool, slot, 0, position + 6)
    prefill = pool.checkpoint(slot, position, HISTORY)
    pool.commit(prefill, export(stage, prefill))
    decode = Stage(stage.site, num_slots=3, max_speculative_tokens=drafts)
    other = make_pool(decode)
    kept = other.import_blob(pool.export_blob(prefill))
    assert (kept.position, kept.history) == (position, HISTORY)
    warm = other.restore(kept, position, HISTORY)
    assert_same_bits(run(decode, other, warm, position, 6), cold[position:], "out")
    other.check_integrity()


def test_a_blob_of_another_model_is_refused(stage: Stage, pool: SlotPool) -> None:
    slot = pool.acquire()
    run(stage, pool, slot, 0, 5)
    blob = pool.export_blob(pool.snapshot(slot, 5, HISTORY))
    for caps, options, message in (
        ({}, {"model_id": "other"}, "expected model other, got m"),
        ({"dtype": torch.bfloat16}, {}, r"expected dtype torch\.bfloat16, got torch\.float32"),
        ({"kernel_size": 3}, {}, r"expected window \[6, 48\], got \[9, 48\]"),
        ({"streams": 1}, {}, r"expected window \[9, 24\], got \[9, 48\]"),
        ({}, {"history_length": 3}, "expected the last 3 tokens before position 5"),
    ):
        other = make_pool(Stage(stage.site, **caps), **options)
        with pytest.raises(SlotError, match=message):
            other.import_blob(blob)
        assert other.num_free == 6


def test_foreign_and_wrong_handles(stage: Stage, pool: SlotPool) -> None:
    slot = pool.acquire()
    run(stage, pool, slot, 0, 5)
    kept = pool.snapshot(slot, 5, HISTORY)
    with pytest.raises(SlotError, match="slot 4: expected a request's slot, but nothing holds it"):
        pool.release(4)
    with pytest.raises(SlotError, match="but a checkpoint holds it; take one with acquire"):
        pool.advance(kept.slot, 5, 1)
    with pytest.raises(
        SlotError, match=r"expected one that this pool keeps; move another pool.s with export_blob"
    ):
        make_pool(stage).restore(kept, 5, HISTORY)
    with pytest.raises(SlotError, match="expected pending, got committed; it was committed"):
        pool.commit(kept, ExportStatus.WRITTEN)
    pending = pool.checkpoint(slot, 5, HISTORY)
    with pytest.raises(SlotError, match="status: expected an ExportStatus"):
        pool.commit(pending, 7)
    with pytest.raises(SlotError, match=r"in slot 0 reaches \(above 0, at most 5\), got 6"):
        pool.checkpoint(slot, 6, HISTORY)
    with pytest.raises(SlotError, match=r"history: expected the last 2 tokens .* got 3"):
        pool.checkpoint(slot, 5, (1, 2, 3))
    with pytest.raises(SlotError, match=r"num_tokens: expected 0 to \d+ .*, got -1"):
        pool.advance(slot, 5, -1)
    pool.check_integrity()


def test_a_full_pool_refuses_checkpoints_and_forks_unchanged(stage: Stage, pool: SlotPool) -> None:
    slot = pool.acquire()
    run(stage, pool, slot, 0, 5)
    kept = pool.snapshot(slot, 5, HISTORY)
    while pool.num_free:
        pool.acquire()
    for attempt in (
        lambda: pool.fork(slot, 5),
        lambda: pool.checkpoint(slot, 5, HISTORY),
        lambda: pool.restore(kept, 5, HISTORY),
        lambda: pool.snapshot(slot, 5, HISTORY),
    ):
        with pytest.raises(SlotError, match="release a request or discard a checkpoint"):
            attempt()
    pool.check_integrity()


def test_integrity_finds_a_run_in_a_committed_slot(stage: Stage, pool: SlotPool) -> None:
    slot = pool.acquire()
    run(stage, pool, slot, 0, 5)
    kept = pool.snapshot(slot, 5, HISTORY)
    pool.check_integrity()
    stage.load([draw_request(stage.caps, kept.slot, 5, 1)])
    stage.run()
    with pytest.raises(SlotError, match="a run wrote into a committed checkpoint"):
        pool.check_integrity()


def test_what_a_pool_refuses_to_be_made_of(stage: Stage) -> None:
    state, caps = stage.binding.conv_state, stage.caps
    for wrong, message in (
        (state[:, 1:], r"conv_state: expected shape \[6, 12, 48\], got \[6, 11, 48\]"),
        (state[0], r"conv_state: expected shape \[6, 12, 48\], got \[12, 48\]"),
        (state.repeat(2, 1, 1), "conv_state: expected at most max_state_slots = 6 slots, got 12"),
        (state[:, :, :1].expand_as(state), "conv_state: expected rows of 576 contiguous elements"),
        (state.to("meta"), "conv_state: expected device cpu, got meta"),
        (None, "conv_state: expected a tensor, got NoneType"),
        (state.half(), r"conv_state: expected dtype torch\.float32, got torch\.float16"),
    ):
        with pytest.raises(ArgumentError, match=message):
            SlotPool(caps, wrong, history_length=2, model_id="m")
    for options, message in (
        ({"protected": [6]}, "protected: expected slots from 0 to 5, got 6"),
        ({"protected": ["0"]}, "protected: expected an integer, got '0'"),
        ({"history_length": -1}, "history_length: expected an integer of at least 0, got -1"),
        ({"history_length": 2.0}, "history_length: expected an integer of at least 0, got 2.0"),
        ({"model_id": None}, "model_id: expected a str, got None"),
    ):
        with pytest.raises(ArgumentError, match=message):
            make_pool(stage, **options)
    with pytest.raises(ArgumentError, match="caps: expected a Caps, got None"):
        SlotPool(None, state, history_length=2, model_id="m")


@pytest.mark.parametrize("wrong", [None, "1", 1.0, True, [1], torch.tensor(1.0)])
def test_numbers_that_are_none_are_refused_and_change_nothing(
    pool: SlotPool, wrong: object
) -> None:
    slot = pool.acquire()
    pool.advance(slot, 0, 5)
    kept = pool.snapshot(slot, 5, HISTORY)
    pending = pool.checkpoint(slot, 3, HISTORY)
    for name, call in {
        "slot": lambda: pool.release(wrong),
        "start": lambda: pool.advance(slot, wrong, 1),
        "num_tokens": lambda: pool.advance(slot, 5, wrong),
        "position": lambda: pool.fork(slot, wrong),
        "status": lambda: pool.commit(pending, wrong),
        r"history\[1\]": lambda: pool.checkpoint(slot, 3, (5, wrong)),
    }.items():
        with pytest.raises(ArgumentError, match=f"^{name}: expected an integer.*, got "):
            call()
    for call in (
        lambda: pool.checkpoint(slot, wrong, HISTORY),
        lambda: pool.snapshot(slot, wrong, HISTORY),
        lambda: pool.restore(kept, wrong, HISTORY),
    ):
        with pytest.raises(ArgumentError, match=r"^position: expected an integer, got "):
            call()
    for call in (pool.discard, pool.export_blob, lambda kept: pool.restore(kept, 5, HISTORY)):
        with pytest.raises(ArgumentError, match=r"^checkpoint: expected a WindowCheckpoint, got "):
            call(wrong)
    with pytest.raises(ArgumentError, match=r"^blob: expected a bytes or .* got "):
        pool.import_blob(wrong)
    assert (pool.live_slots, pool.num_free) == ((slot,), 3)
    pool.check_integrity()


@pytest.mark.parametrize("history", [5, None, (-1, 2), (1, 2**63), "ab"])
def test_histories_that_are_none_are_refused(pool: SlotPool, history: object) -> None:
    slot = pool.acquire()
    pool.advance(slot, 0, 5)
    with pytest.raises(ArgumentError, match=r"^history"):
        pool.checkpoint(slot, 3, history)
    assert pool.num_free == 5


def test_integers_of_other_kinds_are_taken(pool: SlotPool) -> None:
    """A scheduler's numbers often come out of an array or a tensor."""
    slot = torch.tensor(pool.acquire())
    pool.advance(slot, np.int64(0), torch.tensor(5))
    kept = pool.snapshot(slot, torch.tensor(5), np.array(HISTORY))
    assert (kept.position, kept.history) == (5, HISTORY)
    assert pool.restore(kept, np.int32(5), torch.tensor(HISTORY)) == 2
    blob = pool.export_blob(kept)
    assert pool.import_blob(memoryview(blob)).history == HISTORY
    pool.release(slot)
    pool.check_integrity()
