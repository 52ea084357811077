"""Checks of a caller's result buffer, made once at the boundary."""

from __future__ import annotations

import torch

from gramary.errors import ArgumentError
from gramary.flat_batch import require_plain


def require_in_memory(out: torch.Tensor) -> None:
    """Raises ArgumentError where what is written at a result buffer's address is not its numbers.

    Apart from `check_out`, which a compiler may trace.
    """
    require_plain("out", out)
    if out.is_neg():
        raise ArgumentError("out: expected a tensor that is not negated when it is read")


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


__all__ = ["check_out", "end_of", "refuse_overlap", "require_in_memory"]
