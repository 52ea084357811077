"""`ple.export_checkpoint`: every status in its order, every window, nothing else touched."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ple_stage import EPS, SITES, Site, Stage, Twin, assert_close, assert_same_bits, draw_request

from gramary import ple
from gramary.ops.gate_conv import MODES
from gramary.ops.reference.window import export_ref, status_ref
from gramary.ple import ExportStatus as Status

pytestmark = pytest.mark.parametrize("site", SITES)

# Entries that ask for nothing.
NONE = -1


def export(stage: Stage, entries: list[list[tuple[int, int]]]) -> torch.Tensor:
    """Exports (slot, offset) entries of each request; returns the statuses, rows as given."""
    slots, offsets = entry_tensors(stage, entries)
    status = torch.full_like(offsets, -7)
    returned = ple.export_checkpoint(stage.binding, offsets=offsets, slots=slots, status=status)
    assert returned is status
    return status.cpu()


def entry_tensors(
    stage: Stage, entries: list[list[tuple[int, int]]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """slots and offsets [max_seqs, n]; requests without entries get disabled ones."""
    width = max(len(row) for row in entries)
    rows = entries + [[]] * (stage.caps.max_seqs - len(entries))
    full = torch.tensor([row + [(NONE, 0)] * (width - len(row)) for row in rows])
    device = stage.caps.device
    slots, offsets = full.unbind(-1)
    return slots.contiguous().to(device), offsets.int().contiguous().to(device)


def export_ref_of(twin: Twin, before: Twin, entries: list[list[tuple[int, int]]]) -> torch.Tensor:
    """The same on the reference's side."""
    slots, offsets = (tensor.cpu() for tensor in entry_tensors(twin.stage, entries))
    return export_ref(
        twin.binding,
        offsets=offsets,
        slots=slots,
        eps=EPS,
        conv_state_before=before.binding.conv_state,
        residual_before=before.binding.residual,
    )


@pytest.mark.behaviour(26)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["contribution", "in_place"])
@pytest.mark.parametrize("start", [0, 2, 9, 40])
def test_every_offset_equals_a_run_that_ends_there(
    site: Site, dtype: torch.dtype, in_place: bool, start: int
) -> None:
    """Behaviour 26: the window at every offset is the one of a run that stopped there.

    Offsets below the window's length need history that the run itself has overwritten (a run
    of 16 tokens covers the slot), and the residual may have been replaced by the output.
    """
    stage = Stage(site, dtype=dtype, in_place=in_place, num_slots=20, padding=8)
    caps = stage.caps
    if start:
        stage.load([draw_request(caps, 1, 0, start % 32 or 1)])
        stage.run()
        # Position p in column p mod capacity, whatever the positions are called.
        stage.binding.conv_state[1] = torch.randn(caps.state_capacity, caps.channels)
    stage.load([draw_request(caps, 1, start, 16)])
    before, twin = stage.twin(), stage.twin()
    stage.run()
    twin.run()
    entries = [[(2 + offset, offset) for offset in range(1, 17)]]
    assert (export(stage, entries)[0] == Status.WRITTEN).all()
    export_ref_of(twin, before, entries)
    twin.assert_equal()
    for offset in (1, 5, 16):
        end = start + offset
        empty = [p % caps.state_capacity for p in range(end, end + caps.max_decode_tokens)]
        assert (stage.binding.conv_state[2 + offset, empty] == 0).all()


def test_windows_are_those_of_live_slots(site: Site) -> None:
    """Exporting after the last token copies the live window, bit for bit, in every mode."""
    for mode in MODES:
        stage = Stage(site, mode=mode, dtype=torch.bfloat16)
        caps = stage.caps
        for start in (0, 3, 6, 9, 12):
            stage.load([draw_request(caps, 2, start, 3)])
            stage.run()
            assert export(stage, [[(4, 3)]])[0, 0] == Status.WRITTEN
            live, exported = (
                ple.to_chronological(
                    stage.binding.conv_state[slot], start + 3, caps.state_length
                ).cpu()
                for slot in (2, 4)
            )
            assert_same_bits(exported, live, f"{mode} at {start}")


@pytest.mark.parametrize("mode", MODES)
def test_statuses_in_their_order(site: Site, mode: str) -> None:
    """Each rule on its own, and every pair of rules of which the earlier one decides."""
    stage = Stage(site, mode=mode, num_slots=10, max_seqs=5)
    caps = stage.caps
    stage.load(
        [
            draw_request(caps, 0, 0, 3),
            draw_request(caps, -1, 0, 2),  # not live
            draw_request(caps, 1, 5, 0),  # live, without tokens
            draw_request(caps, 2, 0, 2),
        ]
    )
    before, twin = stage.twin(), stage.twin()
    stage.run()
    twin.run()
    good, off, idle, bad, far, twice, live = (
        Status.WRITTEN, Status.DISABLED, Status.NOT_LIVE, Status.BAD_OFFSET,
        Status.OUT_OF_POOL, Status.DUPLICATE, Status.LIVE_SLOT,
    )  # fmt: skip
    cases = [
        [(9, 3, good), (8, 0, bad), (-1, 1, off), (7, 1, twice)],
        # Not live: stale entries disturb nobody.
        [(9, 1, idle), (-1, 1, off), (99, 1, idle), (0, 9, idle)],
        # Live without tokens: no offset is good.
        [(6, 1, bad), (2, 1, live), (2**40, 0, far), (7, 0, twice)],
        [(5, 2, good), (1, 3, live), (2**40, 1, far), (2, 9, live)],
        # Beyond num_seqs, whatever it says.
        [(5, 1, idle), (9, 1, idle), (-2, 0, off), (2**62, 0, idle)],
    ]
    entries = [[(slot, offset) for slot, offset, _ in row] for row in cases]
    expected = torch.tensor([[status for *_, status in row] for row in cases], dtype=torch.int32)
    got = export(stage, entries)
    assert got.tolist() == expected.tolist()
    assert export_ref_of(twin, before, entries).tolist() == expected.tolist()
    twin.assert_equal()


def test_every_member_of_a_group_is_skipped(site: Site) -> None:
    stage = Stage(site, num_slots=8)
    caps = stage.caps
    stage.load([draw_request(caps, slot, 0, 4) for slot in (0, 1, 2)])
    stage.run()
    pool = stage.pool.clone()
    status = export(stage, [[(5, 1), (6, 2)], [(5, 99), (7, 3)], [(5, 2), (7, 4)]])
    assert (status[:3] == torch.tensor([[5, 1], [5, 5], [5, 5]])).all()
    written = stage.binding.conv_state[6].clone()
    stage.binding.conv_state[6].fill_(float("nan"))
    assert_same_bits(stage.pool.cpu(), pool.cpu(), "pool")
    assert not written.isnan().any()


def test_a_broken_promise_has_no_offsets(site: Site) -> None:
    """Its slot is protected all the same: it is live."""
    stage = Stage(site, mode="decode", num_slots=8)
    stage.load([draw_request(stage.caps, 1, 0, 4), draw_request(stage.caps, 2, 0, 2)])
    stage.run()
    status = export(stage, [[(5, 1), (6, 4)], [(1, 1), (7, 2)]])
    assert status[:2].tolist() == [
        [Status.BAD_OFFSET, Status.BAD_OFFSET],
        [Status.LIVE_SLOT, Status.WRITTEN],
    ]


def test_offsets_end_at_num_tokens(site: Site) -> None:
    stage = Stage(site, num_slots=8)
    stage.load([draw_request(stage.caps, 1, 0, 6)])
    stage.binding.num_tokens[0] = 4
    stage.run()
    assert export(stage, [[(5, 4), (6, 5)]])[0].tolist() == [Status.WRITTEN, Status.BAD_OFFSET]


def test_without_status_and_without_entries(site: Site) -> None:
    stage = Stage(site)
    stage.load([draw_request(stage.caps, 1, 0, 3)])
    stage.run()
    slots, offsets = entry_tensors(stage, [[(4, 2)]])
    result = ple.export_checkpoint(stage.binding, offsets=offsets[:, 0], slots=slots[:, 0])
    assert result is None
    assert not stage.binding.conv_state[4].isnan().any()
    empty = ple.export_checkpoint(stage.binding, offsets=offsets[:, :0], slots=slots[:, :0])
    assert empty is None


def test_an_exported_window_resumes(site: Site) -> None:
    """A request that starts from an exported window goes on as the one it was taken from."""
    stage = Stage(site, dtype=torch.bfloat16, num_slots=8)
    caps = stage.caps
    stage.load([draw_request(caps, 1, 0, 20)])
    cold = stage.run()[:20].clone()
    export(stage, [[(3, 7), (4, 12)]])
    for slot, start in ((3, 7), (4, 12)):
        stage.load([draw_request(caps, slot, start, 20 - start)])
        warm = stage.run()[: 20 - start].clone()
        assert_close(site, warm, cold[start:], f"from {start}")


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[list[tuple[int, int]]], int]:
    """(slot, tokens) of up to 4 requests with distinct live slots, entries, and num_seqs."""
    slots = draw(st.permutations([-1, 0, 1, 2, 3, 7, 2**33]))[:4]
    requests = [(slot, draw(st.integers(0, 4))) for slot in slots]
    entry = st.tuples(st.sampled_from([-3, -1, 0, 1, 2, 3, 4, 5, 6, 2**33]), st.integers(-1, 6))
    width = draw(st.integers(1, 3))
    entries = [[draw(entry) for _ in range(width)] for _ in range(4)]
    return requests, entries, draw(st.integers(0, 4))


@settings(max_examples=60, deadline=None)
@given(batch=batches(), mode=st.sampled_from(MODES))
def test_random_entries(site: Site, batch: tuple, mode: str) -> None:
    requests, entries, num_seqs = batch
    stage = Stage(site, mode=mode, num_slots=7)
    caps = stage.caps
    stage.load([draw_request(caps, slot, 4, tokens) for slot, tokens in requests])
    stage.binding.num_seqs[0] = num_seqs
    before, twin = stage.twin(), stage.twin()
    stage.run()
    twin.run()
    got = export(stage, entries)
    expected = export_ref_of(twin, before, entries)
    assert got.tolist() == expected.tolist()
    slots, offsets = (tensor.cpu() for tensor in entry_tensors(stage, entries))
    assert status_ref(twin.binding, offsets=offsets, slots=slots).tolist() == got.tolist()
    twin.assert_equal()
