"""Checks of a flat batch's shapes, dtypes and device, made once at the boundary."""

from __future__ import annotations

import torch

from gramary.errors import ArgumentError
from gramary.model.hashing import HashSpec

TOKEN_DTYPES = (torch.int32, torch.int64)


def check_flat_batch(
    spec: HashSpec,
    token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    history: torch.Tensor | None,
) -> None:
    """Checks everything about a batch that can be known without reading its numbers.

    Args:
        spec: geometry of the table.
        token_ids: int32 or int64 [T].
        query_start_loc: int32 [R+1].
        history: int32 or int64 [R, ngram_size-1], or None.

    Raises:
        ArgumentError: an argument is no tensor, or its shape, dtype or device is wrong.
    """
    check_tensor("token_ids", token_ids, TOKEN_DTYPES, token_ids, "[T]", 1)
    check_tensor("query_start_loc", query_start_loc, (torch.int32,), token_ids, "[R+1]", 1)
    num_requests = query_start_loc.numel() - 1
    if num_requests < 0:
        raise ArgumentError("query_start_loc: expected shape [R+1], at least one element, got [0]")
    if history is None:
        return
    width = spec.history_length
    check_tensor("history", history, TOKEN_DTYPES, token_ids, f"[R, {width}]", 2)
    if history.shape != (num_requests, width):
        raise ArgumentError(
            f"history: expected shape [{num_requests}, {width}] (requests of query_start_loc, "
            f"ngram_size-1), got {list(history.shape)}"
        )


def is_stand_in(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is of a class that answers operations itself (FakeTensor, DTensor).

    The address of such a tensor is not that of its numbers, if it has any.
    """
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def require_plain(name: str, tensor: torch.Tensor) -> None:
    """Raises ArgumentError where an argument is a stand-in for a tensor."""
    if is_stand_in(tensor):
        raise ArgumentError(f"{name}: expected a plain tensor, got a {type(tensor).__name__}")


def require_in_memory(out: torch.Tensor) -> None:
    """Raises ArgumentError where what is written at a result buffer's address is not its numbers.

    Apart from `check_out`, which a compiler may trace.
    """
    require_plain("out", out)
    if out.is_neg():
        raise ArgumentError("out: expected a tensor that is not negated when it is read")


def as_in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose numbers lie at its address, one behind the other, as they are.

    A view that is negated when it is read is copied, as one with gaps is.
    """
    return tensor.resolve_conj().resolve_neg().contiguous()


def check_out(
    out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """Checks a caller's result buffer.

    Raises:
        ArgumentError: it is no contiguous tensor of this shape, dtype and device.
    """
    if not isinstance(out, torch.Tensor):
        raise ArgumentError(f"out: expected a tensor, got {type(out).__name__}")
    if out.shape != shape or out.dtype != dtype or out.device != device:
        raise ArgumentError(
            f"out: expected {dtype} {list(shape)} on {device}, "
            f"got {out.dtype} {list(out.shape)} on {out.device}"
        )
    if not out.is_contiguous():
        raise ArgumentError(f"out: expected a contiguous tensor, got strides {out.stride()}")


def refuse_overlap(out: torch.Tensor, **arguments: torch.Tensor | None) -> None:
    """Raises ArgumentError where a result buffer shares a byte with an argument.

    What is written would be read as a token or an id. Addresses are compared; only where the ranges
    of a tensor with gaps and of the buffer meet, its elements are.

    Args:
        out: contiguous.
        arguments: plain tensors by name, on any device; None is left out.
    """
    begin = out.data_ptr()
    end = begin + out.nbytes
    for name, tensor in arguments.items():
        if tensor is None or tensor.data_ptr() >= end or end_of(tensor) <= begin:
            continue
        if tensor.is_contiguous() or bool(_has_element_between(tensor, begin, end)):
            raise ArgumentError(
                f"out: expected memory of its own, got a tensor that shares memory with {name}; "
                "pass another buffer, or a copy of the argument"
            )


def end_of(tensor: torch.Tensor) -> int:
    """Returns the address behind a tensor's last byte; its first one's where it has none."""
    if tensor.is_contiguous():
        return tensor.data_ptr() + tensor.nbytes
    if not tensor.numel():
        return tensor.data_ptr()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _has_element_between(tensor: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """Returns whether an element of a tensor with gaps reaches into a range of addresses."""
    width = tensor.element_size()
    starts = torch.tensor(tensor.data_ptr(), dtype=torch.int64, device="cpu")
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        # Elements that lie on each other count once.
        steps = torch.arange(size if stride else 1, dtype=torch.int64, device="cpu")
        starts = starts.unsqueeze(-1) + steps * (stride * width)
    return ((starts < end) & (starts + width > begin)).any()


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    dtypes: tuple[torch.dtype, ...],
    beside: torch.Tensor,
    shape: str,
    num_dims: int,
) -> None:
    """Raises ArgumentError where dtype, layout, dimensions or device (`beside`'s) are wrong."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        expected = " or ".join(str(dtype) for dtype in dtypes)
        raise ArgumentError(f"{name}: expected {expected}, got {tensor.dtype}")
    require_plain(name, tensor)
    if tensor.layout != torch.strided:
        raise ArgumentError(f"{name}: expected a dense tensor, got {tensor.layout}")
    if tensor.dim() != num_dims:
        raise ArgumentError(f"{name}: expected shape {shape}, got {list(tensor.shape)}")
    if tensor.device != beside.device:
        raise ArgumentError(
            f"{name}: expected a tensor on {beside.device} like token_ids, got {tensor.device}"
        )


__all__ = [
    "TOKEN_DTYPES",
    "as_in_memory",
    "check_flat_batch",
    "check_out",
    "check_tensor",
    "end_of",
    "is_stand_in",
    "refuse_overlap",
    "require_in_memory",
    "require_plain",
]
