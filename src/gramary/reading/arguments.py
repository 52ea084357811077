"""Checks of what a caller passes to a lookup, made once at the boundary."""

from __future__ import annotations

import torch
from torch._C import _len_torch_dispatch_stack

from gramary.errors import ArgumentError, RowIdError
from gramary.flat_batch import as_in_memory, is_stand_in, require_plain
from gramary.model.codecs import Codec, describe
from gramary.native.rows import first_wrong_row_id
from gramary.ops.result_buffer import check_out, require_in_memory

_ID_DTYPES = (torch.int32, torch.int64)


def is_traced(*tensors: torch.Tensor | None) -> bool:
    """Returns whether a compiler, a mode or an argument has to see a call as an operation.

    A mode is a tracer, a fake mode or a counter; such an argument is a tensor that answers
    operations itself.
    """
    if torch.compiler.is_compiling() or _len_torch_dispatch_stack() > 0:
        return True
    for tensor in tensors:
        # None and torch's own class, the usual ones, cost no call.
        if tensor is None or type(tensor) is torch.Tensor:
            continue
        if isinstance(tensor, torch.Tensor) and is_stand_in(tensor):
            return True
    return False


def flat_row_ids(row_ids: torch.Tensor) -> torch.Tensor:
    """Returns row ids of any shape as [n], contiguous.

    Raises:
        ArgumentError: `row_ids` is no tensor of int32 or int64.
    """
    if not isinstance(row_ids, torch.Tensor):
        raise ArgumentError(f"row_ids: expected a tensor, got {type(row_ids).__name__}")
    if row_ids.dtype not in _ID_DTYPES or row_ids.layout != torch.strided:
        raise ArgumentError(
            f"row_ids: expected dense int32 or int64, got {describe(row_ids)}, {row_ids.layout}"
        )
    if type(row_ids) is not torch.Tensor:
        require_plain("row_ids", row_ids)
    flat_ids = row_ids.reshape(-1)
    is_in_memory = flat_ids.is_contiguous() and not flat_ids.is_neg()
    return flat_ids if is_in_memory else as_in_memory(flat_ids)


def require_row_ids(row_ids: torch.Tensor, num_rows: int) -> None:
    """Raises RowIdError for the first id int64 [n] on the CPU that is neither -1 nor a row."""
    index = first_wrong_row_id(row_ids, num_rows)
    if index is not None:
        raise RowIdError(
            f"row_ids[{index}]: expected -1 (no row) or a row from 0 to {num_rows - 1}, got "
            f"{int(row_ids[index])}"
        )


def require_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raises ArgumentError where a table on `device` cannot take a tensor from where it lies."""
    if tensor.device != device and tensor.device.type != "cpu":
        raise ArgumentError(
            f"{name}: expected a tensor on {device} (the table's device) or the CPU, got one on "
            f"{tensor.device}"
        )


def result_buffer(
    codec: Codec,
    shape: tuple[int, ...],
    rows_across: int,
    device: torch.device,
    out: torch.Tensor | None,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """Returns what `fitting_buffer` does, to be written at its address.

    Raises:
        ArgumentError: as it does, or `out` is a stand-in for a tensor, or negated when it is read.
    """
    result = fitting_buffer(codec, shape, rows_across, device, out, dtype)
    # A new buffer is a stand-in only where a mode makes every new tensor one.
    if out is not None or type(result) is not torch.Tensor:
        require_in_memory(result)
    return result


def fitting_buffer(
    codec: Codec,
    shape: tuple[int, ...],
    rows_across: int,
    device: torch.device,
    out: torch.Tensor | None,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """Returns the caller's result buffer, checked, or a new one.

    Args:
        codec: encoding of the rows.
        shape: the result's shape but for its last dimension.
        rows_across: rows that lie side by side in the last dimension.
        device: where the result lies.
        out: the caller's buffer, or None.
        dtype: the result's dtype; None is `out`'s, or the codec's default.

    Raises:
        ArgumentError: the dtype is not supported, or `out` does not fit.
    """
    if dtype is None and isinstance(out, torch.Tensor):
        dtype = out.dtype
    dtype, width = codec.output_form(dtype)
    shape = (*shape, rows_across * width)
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    check_out(out, shape, dtype, device)
    if out.requires_grad:
        raise ArgumentError("out: expected a tensor without gradient; rows carry none")
    return out
