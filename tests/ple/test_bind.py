"""What caps, `bind` and `export_checkpoint` refuse, and that the message names the argument."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from ple_stage import Site, Stage, draw_request, rebind
from torch._subclasses.fake_tensor import FakeTensorMode

from gramary import ple
from gramary.errors import ArgumentError, SlotError, UnsupportedError
from gramary.ops.gate_conv import RANGES
from gramary.settings import Settings

CPU = Site("cpu", "cpu")


@pytest.fixture
def stage() -> Stage:
    return Stage(CPU)


@pytest.mark.parametrize("field", RANGES)
def test_caps_out_of_range(field: str) -> None:
    low, high = RANGES[field]
    for value in (low - 1, high + 1, 2.0, True):
        with pytest.raises(ArgumentError, match=f"^{field}: expected an integer from {low}"):
            Stage(CPU, max_state_slots=6, **{field: value}) if field != "max_state_slots" else (
                Stage(CPU, **{field: value})
            )


def test_caps_of_unknown_kinds() -> None:
    with pytest.raises(ArgumentError, match=r"^mode: expected one of decode, mixed, got 'prefill'"):
        Stage(CPU, mode="prefill")
    with pytest.raises(ArgumentError, match=r"^dtype: .*got torch\.float64"):
        Stage(CPU, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="meta"):
        Stage(Site("", "meta"))
    with pytest.raises(ArgumentError, match=r"^backend: expected 'cpu' or 'triton', got 'cuda'"):
        Stage(Site("cuda", "cpu"))


def test_devices_that_are_not() -> None:
    for device in ("gpu", None):
        with pytest.raises(ArgumentError, match=r"^device: expected cpu or cuda, got"):
            dataclasses.replace(Stage(CPU).caps, device=device)
    if not torch.cuda.is_available():
        with pytest.raises(UnsupportedError, match=r"^device: .* got cuda:3; no CUDA GPU is"):
            dataclasses.replace(Stage(CPU).caps, device="cuda:3")


def test_derived_sizes() -> None:
    caps = Stage(CPU, streams=4, hidden_size=8, max_speculative_tokens=3).caps
    assert (caps.channels, caps.state_length, caps.state_capacity) == (32, 9, 13)
    assert caps.max_decode_tokens == 4


WRONG_DTYPE = {
    "scratch": torch.int8,
    "query_start_loc": torch.int64,
    "start_positions": torch.int32,
    "state_slot_ids": torch.int32,
    "num_seqs": torch.int64,
    "num_tokens": torch.int64,
}
NAMES = (
    "scratch", "residual", "key", "value", "k_norm_weight", "q_norm_weight", "u_norm_weight",
    "conv_weight", "query_start_loc", "start_positions", "state_slot_ids", "num_seqs",
    "num_tokens", "conv_state", "out",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_wrong_shape_dtype_device_or_kind(stage: Stage, name: str) -> None:
    tensor = getattr(stage.binding, name)
    wrong_dtype = WRONG_DTYPE.get(name, torch.bfloat16)
    for wrong, message in (
        (tensor[:-1].contiguous() if name not in ("conv_state",) else tensor[:, 1:], "expected"),
        (tensor.unsqueeze(0), "expected shape|expected at least"),
        (tensor.to(wrong_dtype), f"expected dtype .*got {wrong_dtype}"),
        (tensor.to("meta"), "expected device cpu, got meta"),
        ([1.0], "expected a tensor, got list"),
        (FakeTensorMode().from_tensor(tensor), "expected a plain tensor, got a FakeTensor"),
        (torch._neg_view(tensor), "expected a tensor that is not negated"),
    ):
        with pytest.raises(ArgumentError, match=f"^{name}: ({message})"):
            rebind(stage, **{name: wrong})


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("num_")])
def test_wrong_layout(stage: Stage, name: str) -> None:
    tensor = getattr(stage.binding, name)
    spread = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)[..., 0]
    with pytest.raises(ArgumentError, match=f"^{name}: expected (contiguous|rows of)"):
        rebind(stage, **{name: spread})


def test_rows_that_overlap_themselves(stage: Stage) -> None:
    key = stage.binding.key
    folded = torch.zeros(4096).as_strided(key.shape, (8, key.shape[2], 1))
    with pytest.raises(ArgumentError, match=r"^key: expected rows of 48 contiguous elements at"):
        rebind(stage, key=folded)


def test_scratch_too_small_or_askew(stage: Stage) -> None:
    nbytes = stage.plan.scratch_nbytes
    with pytest.raises(ArgumentError, match=rf"^scratch: .*scratch_nbytes = {nbytes}\]"):
        rebind(stage, scratch=torch.empty(nbytes - 1, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match=r"^scratch: expected 16-byte alignment"):
        rebind(stage, scratch=torch.empty(nbytes + 32, dtype=torch.uint8)[1:])


def test_pool_larger_than_planned(stage: Stage) -> None:
    shape = stage.binding.conv_state.shape
    rebind(stage, conv_state=torch.zeros(2, *shape[1:]))
    rebind(stage, conv_state=torch.zeros(0, *shape[1:]))
    with pytest.raises(ArgumentError, match=r"^conv_state: expected at most max_state_slots = 6"):
        rebind(stage, conv_state=torch.zeros(7, *shape[1:]))


INPUTS = [name for name in NAMES if name not in ("scratch", "conv_state", "out")]


@pytest.mark.parametrize("name", INPUTS)
def test_written_memory_may_not_be_read(stage: Stage, name: str) -> None:
    """Each of out, conv_state and scratch over each input, and over each other."""
    for written in ("out", "conv_state", "scratch"):
        big = torch.zeros(1 << 16, dtype=torch.uint8)
        tensors = {which: overlay(big, getattr(stage.binding, which)) for which in (written, name)}
        with pytest.raises(ArgumentError, match="share memory") as caught:
            rebind(stage, **tensors)
        assert written in str(caught.value)
        assert name in str(caught.value)


def overlay(big: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor like another, at the start of some memory."""
    nbytes = tensor.numel() * tensor.element_size()
    return big[:nbytes].view(tensor.dtype).view(tensor.shape)


def test_out_may_be_exactly_the_residual(stage: Stage) -> None:
    residual = stage.binding.residual
    rebind(stage, out=residual, add_residual=True)
    with pytest.raises(ArgumentError, match="residual and out share memory"):
        rebind(stage, out=residual, add_residual=False)
    longer = torch.zeros(residual.shape[0] + 1, *residual.shape[1:])
    with pytest.raises(ArgumentError, match="residual and out share memory"):
        rebind(stage, residual=longer[:-1], out=longer[1:], add_residual=True)


def test_interleaved_pools_are_apart(stage: Stage) -> None:
    """Two layers' windows and a scratch in one page: their ranges overlap, their bytes do not."""
    shape = stage.binding.conv_state.shape
    slot = shape[1] * shape[2]
    pages = torch.zeros(shape[0], 3 * slot)
    first = pages[:, :slot].view(shape)
    rebind(stage, conv_state=first, out=torch.zeros_like(stage.binding.out))
    middle = pages.as_strided(shape, (3 * slot, shape[2], 1), slot)
    rebind(stage, conv_state=middle)
    inside = pages[0, slot - 24 : slot - 24 + stage.caps.channels]
    rebind(stage, conv_state=first, u_norm_weight=pages[0, slot : slot + stage.caps.channels])
    with pytest.raises(ArgumentError, match="u_norm_weight and conv_state share memory"):
        rebind(stage, conv_state=first, u_norm_weight=inside)


EXPORTS: list[tuple[str, str, Callable[[torch.Tensor], torch.Tensor]]] = [
    ("offsets", "expected dtype torch.int32", lambda tensor: tensor.long()),
    ("slots", "expected dtype torch.int64", lambda tensor: tensor.int()),
    ("status", "expected dtype torch.int32", lambda tensor: tensor.long()),
    ("offsets", "expected shape", lambda tensor: tensor[:, 0].contiguous()),
    ("status", "expected shape", lambda tensor: tensor[:-1]),
    ("slots", "expected shape", lambda tensor: tensor[:-1]),
    ("slots", "expected contiguous", lambda tensor: tensor.T.contiguous().T),
    ("offsets", "expected device", lambda tensor: tensor.to("meta")),
]


@pytest.mark.parametrize(("name", "message", "spoil"), EXPORTS)
def test_export_refuses(
    stage: Stage, name: str, message: str, spoil: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    shape = (stage.caps.max_seqs, 2)
    given = {
        "offsets": torch.ones(shape, dtype=torch.int32),
        "slots": torch.full(shape, -1),
        "status": torch.zeros(shape, dtype=torch.int32),
    }
    stage.load([])
    ple.export_checkpoint(stage.binding, **given)
    with pytest.raises(ArgumentError, match=f"^{name}: {message}"):
        ple.export_checkpoint(stage.binding, **given | {name: spoil(given[name])})
    with pytest.raises(ArgumentError, match=r"^status and offsets share memory"):
        ple.export_checkpoint(stage.binding, **given | {"status": given["offsets"]})


def test_export_refuses_bound_memory(stage: Stage) -> None:
    caps = stage.caps
    slots = torch.full((caps.max_seqs,), -1)
    offsets = stage.binding.scratch[: 4 * caps.max_seqs].view(torch.int32)
    with pytest.raises(ArgumentError, match="offsets and scratch share memory"):
        ple.export_checkpoint(stage.binding, offsets=offsets, slots=slots)
    with pytest.raises(ArgumentError, match="status and query_start_loc share memory"):
        ple.export_checkpoint(
            stage.binding,
            offsets=torch.ones(caps.max_seqs, dtype=torch.int32),
            slots=slots,
            status=stage.binding.query_start_loc[1:],
        )


def test_debug_checks_find_two_requests_in_one_slot() -> None:
    stage = Stage(CPU)
    plan = ple.plan(stage.caps, settings=Settings(debug_checks=True))
    binding = rebind(stage, plan=plan)
    stage.load([draw_request(stage.caps, slot, 0, 2) for slot in (3, 1, 3)])
    with pytest.raises(SlotError, match="requests 0 and 2 both name slot 3"):
        ple.run(binding, eps=1e-6)
    stage.load([draw_request(stage.caps, slot, 0, 2) for slot in (-1, 1, -1, 99)])
    ple.run(binding, eps=1e-6)


def test_contradicting_metadata_on_the_cpu(stage: Stage) -> None:
    stage.load([draw_request(stage.caps, 1, 0, 3), draw_request(stage.caps, 2, 0, 2)])
    stage.binding.query_start_loc[1] = 6
    with pytest.raises(ArgumentError, match=r"^query_start_loc: .*got \[0, 6, 5\]"):
        stage.run()
    stage.load([draw_request(stage.caps, 1, 0, 3)])
    stage.binding.start_positions[0] = -1
    with pytest.raises(ArgumentError, match=r"^start_positions: expected 0 or more, got -1"):
        stage.run()


@pytest.mark.parametrize("eps", [-1e-6, math.nan, math.inf, "1e-6", None, True])
def test_an_epsilon_that_is_none(stage: Stage, eps: object) -> None:
    stage.load([draw_request(stage.caps, 1, 0, 3)])
    with pytest.raises(ArgumentError, match=r"^eps: expected a finite number of at least 0, got"):
        ple.run(stage.binding, eps=eps)


def test_what_is_no_part_of_the_order_of_calls(stage: Stage) -> None:
    plan, binding = stage.binding.plan, stage.binding
    for name, call in {
        "caps: expected a Caps": lambda: ple.plan(None),
        "settings: expected a Settings": lambda: ple.plan(stage.caps, settings={}),
        "plan: expected a Plan": lambda: rebind(stage, plan=stage.caps),
        "add_residual: expected a bool": lambda: rebind(stage, add_residual="no"),
        "binding: expected a Binding": lambda: ple.run(plan, eps=1e-6),
    }.items():
        with pytest.raises(ArgumentError, match=f"^{name}, got "):
            call()
    shape = (binding.caps.max_seqs,)
    given = {"offsets": torch.ones(shape, dtype=torch.int32), "slots": torch.full(shape, -1)}
    for name, wrong in (("offsets", None), ("slots", [1]), ("status", 0)):
        with pytest.raises(ArgumentError, match=f"^{name}: expected a tensor, got "):
            ple.export_checkpoint(binding, **given | {name: wrong})
