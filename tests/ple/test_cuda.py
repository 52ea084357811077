"""The PLE operations on a GPU: at real sizes, in graphs, without a compiler, on another device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from ple_stage import EPS, Request, Site, Stage, assert_same_bits, draw_request, rebind

from gramary import ple
from gramary.ops.gate_conv import MODES
from gramary.ops.reference.window import export_ref

pytestmark = pytest.mark.gpu

SITE = Site("triton", "cuda")
REAL = {"streams": 4, "hidden_size": 2560, "kernel_size": 4, "dilation": 3}
WRITTEN = int(ple.ExportStatus.WRITTEN)


def real_stage(**options: Any) -> Stage:
    """A stage of the published geometry in bfloat16."""
    return Stage(SITE, **{"dtype": torch.bfloat16, **REAL, **options})


def entries_of(stage: Stage, entries: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
    """One (slot, offset) entry for each of the first requests; the others' are disabled."""
    device, size = stage.caps.device, stage.caps.max_seqs
    slots = torch.full((size,), -1, device=device)
    offsets = torch.zeros(size, dtype=torch.int32, device=device)
    for request, (slot, offset) in enumerate(entries):
        slots[request], offsets[request] = slot, offset
    return {"slots": slots, "offsets": offsets, "status": torch.full_like(offsets, -7)}


def run_and_export(stage: Stage, entries: list[tuple[int, int]]) -> None:
    """Runs and exports on the stage and by the reference, and compares everything."""
    before, twin = stage.twin(), stage.twin()
    stage.run()
    twin.run()
    tensors = entries_of(stage, entries)
    ple.export_checkpoint(stage.binding, **tensors)
    expected = export_ref(
        twin.binding,
        offsets=tensors["offsets"].cpu().unsqueeze(1),
        slots=tensors["slots"].cpu().unsqueeze(1),
        eps=EPS,
        conv_state_before=before.binding.conv_state,
        residual_before=before.binding.residual,
    )
    assert tensors["status"].tolist() == expected.flatten().tolist()
    twin.assert_equal()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("padding", [0, 64], ids=["dense", "padded"])
def test_real_geometry(dtype: torch.dtype, padding: int) -> None:
    stage = real_stage(dtype=dtype, padding=padding, max_tokens=300, num_slots=8)
    caps = stage.caps
    stage.load([draw_request(caps, 1, 0, 150), draw_request(caps, 4, 0, 7)], num_padding=9)
    run_and_export(stage, [(0, 77), (2, 5)])
    requests = [
        draw_request(caps, 4, 7, 1),
        draw_request(caps, 1, 150, 3),
        draw_request(caps, 6, 0, 40),
    ]
    stage.load(requests)
    run_and_export(stage, [(2, 1), (0, 2), (3, 40)])


@pytest.mark.parametrize("speculative", [0, 3])
def test_real_decode(speculative: int) -> None:
    stage = real_stage(
        mode="decode", max_tokens=260, max_seqs=64, max_speculative_tokens=speculative,
        num_slots=80, padding=16,
    )  # fmt: skip
    caps, position = stage.caps, 0
    for num_tokens in (1, 1 + speculative, 1, 1 + speculative):
        requests = [draw_request(caps, 79 - i, position, num_tokens, seed=i) for i in range(64)]
        stage.load(requests, num_padding=4)
        run_and_export(stage, [(i, num_tokens) for i in range(15)])
        position += max(1, num_tokens - 1)


@pytest.mark.parametrize(
    "geometry",
    [(8, 8192, 8, 8), (1, 1000, 8, 8), (3, 7168, 3, 1), (2, 4097, 5, 2)],
    ids=lambda geometry: "-".join(map(str, geometry)),
)
@pytest.mark.parametrize("mode", MODES)
def test_other_geometries(geometry: tuple[int, int, int, int], mode: str) -> None:
    names = ("streams", "hidden_size", "kernel_size", "dilation")
    stage = real_stage(mode=mode, max_tokens=80, **dict(zip(names, geometry, strict=True)))
    lengths = (3, 2, 1) if mode == "decode" else (66, 2, 9)
    position = 0
    for _ in range(2):
        requests = [draw_request(stage.caps, slot, position, n) for slot, n in enumerate(lengths)]
        stage.load(requests)
        run_and_export(stage, [(3, lengths[0]), (4, 1), (5, lengths[2])])
        position = 2
    del requests


@pytest.mark.parametrize("offset", [1, 4, 8])
def test_views_that_start_anywhere(offset: int) -> None:
    """Addresses and strides that are no multiple of 16 bytes take the other compiled kernels."""
    stage = real_stage(padding=offset, max_tokens=64)
    request = draw_request(stage.caps, 1, 0, 30)
    stage.load([request])
    expected = stage.run()[:30].clone()
    shifted = {}
    for name in ("residual", "out", "k_norm_weight", "conv_weight", "conv_state"):
        tensor = getattr(stage.binding, name)
        memory = torch.full((tensor.numel() + offset,), float("nan"), device="cuda").to(tensor)
        shifted[name] = memory[offset:].view(tensor.shape).copy_(tensor)
    binding = rebind(stage, **shifted)
    assert_same_bits(ple.run(binding, eps=EPS)[:30].cpu(), expected.cpu(), "out")


@pytest.fixture
def nothing_on_the_side() -> Iterator[Callable[[], None]]:
    """Forbids to compile, to allocate on the device and to wait for it, from its call on."""
    import triton

    patch = pytest.MonkeyPatch()
    allocations = []

    def count() -> int:
        return torch.cuda.memory_stats()["allocation.all.allocated"]

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a kernel is compiled after plan")

    def forbid() -> None:
        torch.cuda.synchronize()
        allocations.append(count())
        patch.setattr(triton.compiler.compiler, "compile", refuse)
        patch.setattr(triton.runtime.jit.JITFunction, "run", refuse)
        torch.cuda.set_sync_debug_mode("error")

    yield forbid
    torch.cuda.set_sync_debug_mode("default")
    patch.undo()
    assert count() == allocations[0]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_compiled_allocated_or_awaited(
    mode: str, nothing_on_the_side: Callable[[], None]
) -> None:
    """After plan, for bindings of any pool, stride and alignment, and for any batch."""
    stage = real_stage(mode=mode, max_tokens=64, max_state_slots=4096, num_slots=7)
    caps = stage.caps
    odd = real_stage(mode=mode, max_tokens=64, max_state_slots=4096, num_slots=16, padding=1)
    large = torch.zeros(4096, caps.state_capacity, caps.channels, device="cuda").to(caps.dtype)
    bindings = [
        stage.binding,
        odd.binding,
        rebind(stage, conv_state=large),
        rebind(stage, conv_state=large[:1]),
        rebind(stage, out=stage.binding.residual, add_residual=True),
    ]
    batches = []
    for sizes in ((3, 1), (1,), (), (2, 0, 3, 1)):
        stage.load([draw_request(caps, slot, 2, n) for slot, n in enumerate(sizes)])
        names = ("query_start_loc", "start_positions", "state_slot_ids", "num_seqs", "num_tokens")
        batches.append([(name, getattr(stage.binding, name).clone()) for name in names])
    exports = [entries_of(stage, [(5, 1), (6, 1)])]
    wide = {name: tensor.unsqueeze(1).repeat(1, 16) for name, tensor in exports[0].items()}
    exports.append(wide)
    nothing_on_the_side()
    for binding in bindings:
        for batch in batches:
            for name, tensor in batch:
                getattr(binding, name).copy_(tensor)
            ple.run(binding, eps=EPS)
            for tensors in exports:
                ple.export_checkpoint(binding, **tensors)
                ple.export_checkpoint(binding, slots=tensors["slots"], offsets=tensors["offsets"])


@pytest.mark.behaviour(27)
@pytest.mark.parametrize("mode", MODES)
def test_slots_beyond_two_to_the_31_elements_on_a_gpu(mode: str) -> None:
    """Behaviour 27: live slots and destinations whose elements are numbered beyond 2^31."""
    stage = real_stage(mode=mode, num_slots=6, max_tokens=32)
    shape = stage.binding.conv_state.shape
    stride = 2**30 // 2 + 16
    pool = torch.full((5 * stride + shape[1] * shape[2],), 7.0, dtype=torch.bfloat16, device="cuda")
    view = pool.as_strided(tuple(shape), (stride, shape[2], 1))
    far = rebind(stage, conv_state=view)
    stage.load([draw_request(stage.caps, 4, 0, 3), draw_request(stage.caps, 1, 0, 2)])
    entries = entries_of(stage, [(5, 2), (0, 1)])
    ple.run(far, eps=EPS)
    ple.export_checkpoint(far, **entries)
    expected = stage.run()[:5].clone()
    ple.export_checkpoint(stage.binding, **entries)
    assert entries["status"].tolist() == [WRITTEN, WRITTEN, 0, 0]
    assert_same_bits(far.out[:5].cpu(), expected.cpu(), "out")
    for slot, num_columns in ((4, 3), (1, 2), (5, shape[1]), (0, shape[1])):
        expected_window = stage.binding.conv_state[slot, :num_columns].cpu()
        assert_same_bits(view[slot, :num_columns].cpu(), expected_window, f"slot {slot}")
    # The rest of the pool is as it was.
    assert (view[2:4] == 7).all()
    assert (pool[stride * 4 + shape[1] * shape[2] : stride * 5] == 7).all()


@pytest.mark.behaviour(26)
def test_a_prefix_cache_hit_equals_a_miss() -> None:
    """Behaviour 26: prompts of 8192 tokens resumed from inside give the same, bit for bit."""
    stage = real_stage(max_tokens=8192, num_slots=12, max_seqs=4)
    caps = stage.caps
    request = draw_request(caps, 0, 0, 8192)
    stage.load([request])
    cold = stage.run().clone()
    offsets = (1, 5, 4096, 8185)
    slots = torch.full((4, 4), -1, device="cuda")
    slots[0] = torch.arange(4) + 4
    at = torch.zeros(4, 4, dtype=torch.int32, device="cuda")
    at[0] = torch.tensor(offsets)
    status = torch.zeros_like(at)
    ple.export_checkpoint(stage.binding, offsets=at, slots=slots, status=status)
    assert status[0].tolist() == [WRITTEN] * 4
    for slot, offset in enumerate(offsets, start=4):
        rest = Request(slot, offset, *(part[offset:] for part in
                       (request.residual, request.key, request.value)))  # fmt: skip
        stage.load([rest])
        assert_same_bits(stage.run()[: rest.num_tokens].cpu(), cold[offset:].cpu(), f"at {offset}")


@pytest.mark.two_gpus
@pytest.mark.parametrize("mode", MODES)
def test_another_current_device(mode: str) -> None:
    """The binding's device is launched on, and the caller's current one is restored."""
    stages = [
        Stage(Site("triton", f"cuda:{index}"), mode=mode, dtype=torch.bfloat16, **REAL)
        for index in range(2)
    ]
    requests = [draw_request(stages[0].caps, 1, 0, 3), draw_request(stages[0].caps, 2, 4, 2)]
    outs = []
    for stage in stages:
        with torch.cuda.device(0):
            stage.load(requests)
            torch.cuda.synchronize(stage.caps.device)
            stage.run()
            entries = entries_of(stage, [(0, 2), (3, 1)])
            ple.export_checkpoint(stage.binding, **entries)
            assert torch.cuda.current_device() == 0
        torch.cuda.synchronize(stage.caps.device)
        outs.append((stage.binding.out[:5].cpu(), stage.pool.cpu(), entries["status"].tolist()))
    assert_same_bits(outs[1][0], outs[0][0], "out")
    assert_same_bits(outs[1][1], outs[0][1], "pool")
    assert outs[0][2] == outs[1][2] == [WRITTEN, WRITTEN, 0, 0]
