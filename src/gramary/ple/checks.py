"""What `bind` and `export_checkpoint` refuse: shape, dtype, device, layout, shared memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import torch

from gramary.errors import ArgumentError
from gramary.flat_batch import require_plain
from gramary.ops.gate_conv import Binding, Caps, Plan
from gramary.ple.memory import Span, overlaps, span_of

SCRATCH_ALIGNMENT = 16

# Arguments whose rows (along the first dimension) may lie any stride apart.
STRIDED = ("key", "value", "conv_state")
WRITTEN = ("scratch", "conv_state", "out")


def check_binding(
    plan: Plan, tensors: Mapping[str, torch.Tensor], add_residual: bool
) -> tuple[Span, ...]:
    """Returns the spans of a binding's tensors, or raises ArgumentError naming a wrong one."""
    caps = plan.caps
    for name, tensor in tensors.items():
        require_tensor(name, tensor)
    check_pool(caps, tensors["conv_state"])
    for name, (shape, dtype) in expected_tensors(plan, tensors).items():
        check_tensor(name, tensors[name], shape, dtype, caps.device)
        check_layout(name, tensors[name])
    check_scratch(plan, tensors["scratch"])
    spans = tuple(span_of(name, tensor) for name, tensor in tensors.items())
    in_place = add_residual and is_same(tensors["out"], tensors["residual"])
    refuse_overlaps(
        (a, b)
        for a, b in itertools.combinations(spans, 2)
        if (a.name in WRITTEN or b.name in WRITTEN)
        and not (in_place and {a.name, b.name} == {"out", "residual"})
    )
    return spans


def check_export(
    binding: Binding, offsets: torch.Tensor, slots: torch.Tensor, status: torch.Tensor | None
) -> None:
    """Raises ArgumentError naming an argument of `export_checkpoint` that is wrong."""
    caps = binding.caps
    for name, tensor in (("offsets", offsets), ("slots", slots), ("status", status)):
        if name != "status" or tensor is not None:
            require_tensor(name, tensor)
    if slots.ndim not in (1, 2) or slots.shape[0] != caps.max_seqs:
        raise ArgumentError(
            f"slots: expected shape [{caps.max_seqs}] or [{caps.max_seqs}, n], "
            f"got {list(slots.shape)}"
        )
    given = {"offsets": (offsets, torch.int32), "slots": (slots, torch.int64)}
    if status is not None:
        given["status"] = (status, torch.int32)
    for name, (tensor, dtype) in given.items():
        check_tensor(name, tensor, tuple(slots.shape), dtype, caps.device)
        check_layout(name, tensor)
    spans = [span_of(name, tensor) for name, (tensor, _) in given.items()]
    written = [span for span in binding.spans if span.name in WRITTEN]
    refuse_overlaps(itertools.product(spans, written))
    if status is not None:
        others = itertools.chain(spans[:-1], binding.spans)
        refuse_overlaps((spans[-1], other) for other in others)


def expected_tensors(
    plan: Plan, tensors: Mapping[str, torch.Tensor]
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Returns shape and dtype of every argument of `bind`; runtime sizes are taken as given."""
    caps, scratch = plan.caps, tensors["scratch"]
    tokens, seqs, dtype = caps.max_tokens, caps.max_seqs, caps.dtype
    by_stream = (tokens, caps.streams, caps.hidden_size)
    num_bytes = scratch.shape[0] if scratch.ndim == 1 else plan.scratch_nbytes
    return {
        "scratch": ((num_bytes,), torch.uint8),
        "residual": (by_stream, dtype),
        "key": (by_stream, dtype),
        "value": ((tokens, caps.hidden_size), dtype),
        "k_norm_weight": ((caps.channels,), dtype),
        "q_norm_weight": ((caps.channels,), dtype),
        "u_norm_weight": ((caps.channels,), dtype),
        "conv_weight": ((caps.channels, caps.kernel_size), dtype),
        "query_start_loc": ((seqs + 1,), torch.int32),
        "start_positions": ((seqs,), torch.int64),
        "state_slot_ids": ((seqs,), torch.int64),
        "num_seqs": ((1,), torch.int32),
        "num_tokens": ((1,), torch.int32),
        "out": (by_stream, dtype),
    }


def require_tensor(name: str, tensor: object) -> None:
    """Raises ArgumentError where an argument is no tensor whose numbers lie at its address."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    require_plain(name, tensor)
    if tensor.is_neg():
        raise ArgumentError(f"{name}: expected a tensor that is not negated when it is read")


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Raises ArgumentError where shape, dtype or device is not the expected one."""
    if tuple(tensor.shape) != shape:
        raise ArgumentError(f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype != dtype:
        raise ArgumentError(f"{name}: expected dtype {dtype}, got {tensor.dtype}")
    if tensor.device != device:
        raise ArgumentError(f"{name}: expected device {device}, got {tensor.device}")


def check_layout(name: str, tensor: torch.Tensor) -> None:
    """Raises ArgumentError where a tensor is not contiguous, but for the rows of `STRIDED`."""
    if tensor.numel() == 0:
        return
    if name not in STRIDED:
        if not tensor.is_contiguous():
            raise ArgumentError(f"{name}: expected contiguous, got strides {tensor.stride()}")
        return
    row = tensor[0]
    if not row.is_contiguous() or (tensor.shape[0] > 1 and tensor.stride(0) < row.numel()):
        raise ArgumentError(
            f"{name}: expected rows of {row.numel()} contiguous elements at least as far apart, "
            f"got strides {tensor.stride()}"
        )


def check_pool(caps: Caps, conv_state: torch.Tensor) -> None:
    """Raises ArgumentError where a pool of windows does not fit the caps."""
    require_tensor("conv_state", conv_state)
    num_slots = conv_state.shape[0] if conv_state.ndim == 3 else caps.max_state_slots
    shape = (num_slots, caps.state_capacity, caps.channels)
    check_tensor("conv_state", conv_state, shape, caps.dtype, caps.device)
    check_layout("conv_state", conv_state)
    if conv_state.shape[0] > caps.max_state_slots:
        raise ArgumentError(
            f"conv_state: expected at most max_state_slots = {caps.max_state_slots} slots, "
            f"got {conv_state.shape[0]}"
        )


def check_scratch(plan: Plan, scratch: torch.Tensor) -> None:
    """Raises ArgumentError where scratch is too small or not aligned."""
    if scratch.numel() < plan.scratch_nbytes:
        raise ArgumentError(
            f"scratch: expected at least [plan.scratch_nbytes = {plan.scratch_nbytes}], "
            f"got {list(scratch.shape)}"
        )
    if scratch.numel() and scratch.data_ptr() % SCRATCH_ALIGNMENT:
        raise ArgumentError(
            f"scratch: expected {SCRATCH_ALIGNMENT}-byte alignment, "
            f"got address {scratch.data_ptr():#x}"
        )


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two contiguous tensors of one shape are the same memory."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def refuse_overlaps(pairs: Iterable[tuple[Span, Span]]) -> None:
    """Raises ArgumentError where the two of a pair share memory."""
    for a, b in pairs:
        if overlaps(a, b):
            raise ArgumentError(
                f"{a.name} and {b.name} share memory; out, conv_state, scratch and status may "
                "overlap nothing (out may be exactly residual with add_residual=True)"
            )
