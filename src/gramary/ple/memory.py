"""Which bytes a tensor occupies, and whether two tensors share one.

A tensor here is a run of equal rows at a fixed stride, which covers padded pools and column
slices of a projection. Two such tensors may interleave without touching (two layers' windows in
one pool), so ranges alone do not decide.
"""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Span:
    """`num_rows` pieces of `row_bytes` bytes, `stride` bytes apart, the first at `start`."""

    name: str
    start: int
    num_rows: int
    row_bytes: int
    stride: int

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.start + (self.num_rows - 1) * self.stride + self.row_bytes

    @property
    def is_empty(self) -> bool:
        """True where there is no byte at all."""
        return self.num_rows == 0 or self.row_bytes == 0


def span_of(name: str, tensor: torch.Tensor) -> Span:
    """Returns the span of a tensor that is contiguous below its first dimension."""
    num_rows = tensor.shape[0] if tensor.ndim else 1
    row_bytes = (tensor.numel() // max(num_rows, 1)) * tensor.element_size()
    stride = tensor.stride(0) * tensor.element_size() if tensor.ndim else row_bytes
    if num_rows <= 1 or stride == row_bytes:
        return Span(name, tensor.data_ptr(), 1, num_rows * row_bytes, num_rows * row_bytes)
    return Span(name, tensor.data_ptr(), num_rows, row_bytes, stride)


def overlaps(a: Span, b: Span) -> bool:
    """Returns whether the two spans share a byte."""
    if a.is_empty or b.is_empty or a.end <= b.start or b.end <= a.start:
        return False
    few, many = (a, b) if a.num_rows <= b.num_rows else (b, a)
    starts = few.start - many.start + torch.arange(few.num_rows, device="cpu") * few.stride
    # The last row of `many` that starts before the end of a row of `few`, and where it ends.
    last = (starts + few.row_bytes - 1).div(max(many.stride, 1), rounding_mode="floor")
    last = last.clamp_max(many.num_rows - 1)
    return bool(((last >= 0) & (last * many.stride + many.row_bytes > starts)).any())
