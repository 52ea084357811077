"""`ple.run` against the reference: every geometry, dtype, pool and kind of batch."""

import pytest
import torch
from ple_stage import EPS, SITES, Request, Site, Stage, assert_same_bits, draw_request, rebind

from gramary import ple
from gramary.ops.gate_conv import MODES

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

pytestmark = pytest.mark.parametrize("site", SITES)

GEOMETRIES = [
    {"streams": 4, "hidden_size": 64, "kernel_size": 4, "dilation": 3},
    {"streams": 1, "hidden_size": 1, "kernel_size": 2, "dilation": 1},
    {"streams": 3, "hidden_size": 129, "kernel_size": 8, "dilation": 2},
    {"streams": 8, "hidden_size": 63, "kernel_size": 3, "dilation": 8},
]


def run_both(stage: Stage, requests: list[Request], num_padding: int = 0) -> None:
    """Runs a batch on the stage and on its twin, and compares everything."""
    stage.load(requests, num_padding=num_padding)
    twin = stage.twin()
    stage.run()
    twin.run()
    twin.assert_equal()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: "-".join(map(str, g.values())))
def test_equals_the_reference(site: Site, dtype: torch.dtype, geometry: dict[str, int]) -> None:
    stage = Stage(site, dtype=dtype, **geometry)
    caps = stage.caps
    run_both(stage, [draw_request(caps, 2, 0, 11), draw_request(caps, 0, 0, 1)])
    run_both(stage, [draw_request(caps, 2, 11, 1), draw_request(caps, 0, 1, 13)])


@pytest.mark.behaviour(25)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("in_place", [False, True], ids=["contribution", "in_place"])
@pytest.mark.parametrize("padding", [0, 40], ids=["dense", "padded"])
def test_touches_nothing_but_its_own(site: Site, mode: str, in_place: bool, padding: int) -> None:
    """Behaviour 25: padding has zero output (or the residual), no state, and reads nothing.

    Pool, projection and outputs are poisoned, so a stray read shows as NaN and a stray write as
    a difference from the reference's pool, which is compared in full.
    """
    stage = Stage(site, mode=mode, in_place=in_place, padding=padding, max_seqs=6)
    caps = stage.caps
    run_both(stage, [draw_request(caps, 4, 0, 3), draw_request(caps, 1, 0, 2)], num_padding=5)
    requests = [
        draw_request(caps, -1, 9, 2),
        draw_request(caps, 4, 3, 2),
        draw_request(caps, 0, 0, 0),
        draw_request(caps, stage.binding.conv_state.shape[0], 3, 1),
        draw_request(caps, 1, 2, 3),
        draw_request(caps, 2**40, 5, 2),
    ]
    run_both(stage, requests, num_padding=3)
    idle = stage.binding.out[[0, 1, 4, 8, 9, 10, 11, 12]].cpu()
    expected = torch.zeros_like(idle)
    if in_place:
        rows = [requests[0].residual, requests[3].residual, requests[5].residual]
        expected = torch.cat([*rows, torch.full((3, *idle.shape[1:]), 3.0)])
    assert_same_bits(idle, expected, "out")
    assert stage.binding.out[13:].isnan().all()


@pytest.mark.parametrize("mode", MODES)
def test_empty_batches(site: Site, mode: str) -> None:
    stage = Stage(site, mode=mode)
    run_both(stage, [])
    run_both(stage, [], num_padding=4)
    run_both(stage, [draw_request(stage.caps, 1, 0, 0), draw_request(stage.caps, 2, 7, 0)])
    assert stage.pool.isnan().all()


def test_a_broken_promise_runs_nothing(site: Site) -> None:
    stage = Stage(site, mode="decode")
    caps = stage.caps
    run_both(stage, [draw_request(caps, 1, 0, 4), draw_request(caps, 2, 0, 3)])
    assert (stage.binding.out[:4] == 0).all()
    assert stage.binding.conv_state[1].isnan().all()
    assert not stage.binding.out[4:7].isnan().any()


def test_tokens_end_at_num_tokens(site: Site) -> None:
    """A boundary beyond num_tokens is cut there: tokens behind are untouched, whatever it says."""
    stage = Stage(site)
    stage.load([draw_request(stage.caps, 1, 0, 5), draw_request(stage.caps, 2, 0, 5)])
    stage.binding.num_tokens[0] = 7
    twin = stage.twin()
    stage.run()
    twin.run()
    twin.assert_equal()
    assert stage.binding.out[7:].isnan().all()
    assert not stage.binding.conv_state[2, :2].isnan().any()
    assert stage.binding.conv_state[2, 2:].isnan().all()


@pytest.mark.parametrize("mode", MODES)
def test_two_requests_in_one_slot_harm_nobody_else(site: Site, mode: str) -> None:
    """Their own result is undefined; every other byte of the pool and of the output is right."""
    stage = Stage(site, mode=mode, padding=8)
    caps = stage.caps
    requests = [(1, 0, 3), (2, 0, 3), (1, 5, 2), (4, 0, 1)]
    stage.load([draw_request(caps, *request) for request in requests], num_padding=2)
    twin = stage.twin()
    stage.run()
    twin.run()
    for side in (stage, twin):
        side.binding.out[[0, 1, 2, 6, 7]] = 0
        side.binding.conv_state[1] = 0
    twin.assert_equal()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decode_equals_mixed(site: Site, dtype: torch.dtype) -> None:
    """The mode is a promise about the batch, not another arithmetic: equal bits."""
    stages = [Stage(site, mode=mode, dtype=dtype) for mode in MODES]
    for start, num_tokens in ((0, 3), (3, 1), (4, 3), (5, 2)):
        for stage in stages:
            stage.load([draw_request(stage.caps, 3, start, num_tokens)])
            stage.run()
        decode, mixed = stages
        if site.backend == "cpu":
            assert_same_bits(decode.binding.out, mixed.binding.out, "out")
            assert_same_bits(decode.pool, mixed.pool, "pool")


@pytest.mark.behaviour(22)
@pytest.mark.parametrize("sizes", [[1] * 20, [7, 13], [3, 1, 9, 2, 5], [19, 1]], ids=str)
def test_chunks_equal_one_piece(site: Site, sizes: list[int]) -> None:
    """Behaviour 22: any chunking of a prompt gives what one piece gives, bit for bit."""
    whole, chunked = Stage(site, dtype=torch.bfloat16), Stage(site, dtype=torch.bfloat16)
    whole.load([draw_request(whole.caps, 3, 0, 20)])
    expected = whole.run()[:20].clone()
    start, outs = 0, []
    for size in sizes:
        chunked.load([draw_request(chunked.caps, 3, start, size)])
        outs.append(chunked.run()[:size].clone())
        start += size
    assert_same_bits(torch.cat(outs).cpu(), expected.cpu(), "out")
    windows = [
        ple.to_chronological(stage.binding.conv_state[3], 20, stage.caps.state_length)
        for stage in (whole, chunked)
    ]
    assert_same_bits(windows[1].cpu(), windows[0].cpu(), "window")


@pytest.mark.behaviour(22)
def test_a_ragged_batch_equals_its_requests_alone(site: Site) -> None:
    """Behaviour 22: requests of a batch, in any order, equal the same requests run alone."""
    stage, alone = Stage(site, max_seqs=4), Stage(site, max_seqs=4)
    requests = [draw_request(stage.caps, slot, 0, 4 + slot, seed=slot) for slot in (5, 0, 3, 2)]
    stage.load(requests)
    out, begin = stage.run(), 0
    for request in requests:
        alone.load([request])
        expected = alone.run()[: request.num_tokens].clone()
        assert_same_bits(
            out[begin : begin + request.num_tokens].cpu(), expected.cpu(), f"slot {request.slot}"
        )
        begin += request.num_tokens
    assert_same_bits(stage.pool.cpu(), alone.pool.cpu(), "pool")


@pytest.mark.behaviour(24)
@pytest.mark.parametrize("mode", MODES)
def test_rejected_drafts_leave_no_trace(site: Site, mode: str) -> None:
    """Behaviour 24: starting at a smaller position forgets the drafts beyond it."""
    stage, straight = Stage(site, mode=mode), Stage(site, mode=mode)
    accepted, position = torch.zeros(0), 0
    for round_, num_accepted in enumerate((3, 1, 2, 1, 3, 1, 1, 3)):
        true = draw_request(stage.caps, 1, position, num_accepted)
        wrong = draw_request(stage.caps, 1, position, 3 - num_accepted, seed=99 + round_)
        stage.load([
            Request(1, position, *(torch.cat([getattr(true, name), getattr(wrong, name)])
                                   for name in ("residual", "key", "value")))
        ])  # fmt: skip
        accepted = stage.run()[:num_accepted].clone()
        straight.load([true])
        expected = straight.run()[:num_accepted].clone()
        assert_same_bits(accepted.cpu(), expected.cpu(), f"round {round_}")
        position += num_accepted
    windows = [
        ple.to_chronological(s.binding.conv_state[1], position, s.caps.state_length)
        for s in (stage, straight)
    ]
    assert_same_bits(windows[0].cpu(), windows[1].cpu(), "window")


@pytest.mark.behaviour(27)
@pytest.mark.needs("overcommit")
def test_slots_beyond_two_to_the_31_elements(site: Site) -> None:
    """Behaviour 27: a slot whose first element lies beyond 2^31 (a sparse view of the pool)."""
    if site.device == "cuda":
        pytest.skip("the GPU's own test allocates a real pool of this size")
    caps = {"streams": 1, "hidden_size": 4, "dtype": torch.bfloat16, "num_slots": 3}
    stage = Stage(site, **caps)
    stride = 2**30 + 8
    # Only the touched pages of these 4 GiB are ever real.
    pool = torch.empty(2 * stride + 64, dtype=torch.bfloat16)
    view = pool.as_strided(tuple(stage.binding.conv_state.shape), (stride, 4, 1))
    far = rebind(stage, conv_state=view)
    stage.load([draw_request(stage.caps, 2, 0, 5)])
    ple.run(far, eps=EPS)
    expected = stage.run()[:5].clone()
    assert_same_bits(far.out[:5], expected, "out")
    assert_same_bits(view[2, :5], stage.binding.conv_state[2, :5], "window")
