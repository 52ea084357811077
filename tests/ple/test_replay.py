"""One binding, run again and again with other metadata, gives what a fresh one gives."""

from collections.abc import Callable

import pytest
import torch
from ple_stage import EPS, SITES, Request, Site, Stage, draw_request, rebind

from gramary import ple
from gramary.ops.gate_conv import MODES
from gramary.ops.reference.window import export_ref

pytestmark = pytest.mark.parametrize("site", SITES)

# (slot, start, tokens) of the requests, padding tokens, and (request, slot, offset) to export.
Step = tuple[list[tuple[int, int, int]], int, list[tuple[int, int, int]]]
STEPS: list[Step] = [
    ([(0, 0, 3), (1, 0, 2)], 0, [(0, 4, 2), (1, 5, 1)]),
    ([(1, 2, 3), (0, 3, 1), (2, 0, 1)], 4, [(1, 5, 1)]),
    ([(-1, 3, 2), (0, 4, 3)], 1, [(0, 4, 1), (1, 5, 3)]),
    ([], 6, []),
    # Request 0 rejects a token, two slots change hands, an export goes where one was before.
    ([(0, 6, 2), (2, 0, 3), (1, 5, 1), (3, 0, 0)], 0, [(0, 4, 2), (1, 4, 3), (2, 5, 1)]),
    ([(2, 3, 1)], 2, [(0, 4, 9), (0, 5, 1)]),
]


@pytest.mark.behaviour(28)
@pytest.mark.parametrize("mode", MODES)
def test_replays_with_new_metadata_equal_eager(site: Site, mode: str) -> None:
    """Behaviour 28: new tokens, slots, counts, positions and offsets, run by one captured graph.

    On a GPU run and export are captured once and replayed; elsewhere the one binding is run.
    """
    stage = Stage(site, mode=mode, dtype=torch.bfloat16, padding=8)
    caps, device = stage.caps, stage.caps.device
    slots = torch.full((caps.max_seqs, 2), -1, device=device)
    offsets = torch.zeros(caps.max_seqs, 2, dtype=torch.int32, device=device)
    status = torch.full_like(offsets, -9)

    def operations() -> None:
        stage.run()
        ple.export_checkpoint(stage.binding, offsets=offsets, slots=slots, status=status)

    replay = captured(stage, operations)
    for requests, num_padding, exports in STEPS:
        stage.load([draw_request(caps, *request) for request in requests], num_padding=num_padding)
        slots.fill_(-1)
        offsets.zero_()
        for request, slot, offset in exports:
            # A request's entries go to its columns in turn.
            column = int(slots[request, 0] != -1)
            slots[request, column], offsets[request, column] = slot, offset
        before, twin = stage.twin(), stage.twin()
        replay()
        twin.run()
        expected = export_ref(
            twin.binding,
            offsets=offsets.cpu(),
            slots=slots.cpu(),
            eps=EPS,
            conv_state_before=before.binding.conv_state,
            residual_before=before.binding.residual,
        )
        assert status.tolist() == expected.tolist()
        twin.assert_equal()


def captured(stage: Stage, operations: Callable[[], None]) -> Callable[[], None]:
    """A CUDA graph of some operations, captured over an empty batch; themselves elsewhere."""
    if stage.site.device != "cuda":
        return operations
    stage.load([])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operations()
    return graph.replay


@pytest.mark.parametrize("mode", MODES)
def test_one_plan_serves_pools_of_any_size(site: Site, mode: str) -> None:
    """The number of slots is a run-time number: bindings of one plan differ in it."""
    stage = Stage(site, mode=mode, max_state_slots=64, num_slots=2)
    caps = stage.caps
    request = draw_request(caps, 1, 0, 3)
    stage.load([request])
    expected = stage.run()[:3].clone()
    for num_slots in (2, 64):
        pool = torch.full((num_slots, caps.state_capacity, caps.channels), float("nan"))
        pool = pool.to(caps.device, caps.dtype)
        last = num_slots - 1
        stage.load([Request(last, 0, request.residual, request.key, request.value)])
        out = ple.run(rebind(stage, conv_state=pool), eps=EPS)[:3]
        assert torch.equal(out, expected)
        assert not pool[last, :3].isnan().any()
        assert pool[:last].isnan().all()
