"""What the core takes of a tensor: an address, once it is known what lies behind it."""

from __future__ import annotations

import torch


def require_contiguous(tensor: torch.Tensor, *dtypes: torch.dtype) -> None:
    """Raises AssertionError unless a tensor is contiguous, on the CPU and of one of the dtypes.

    Only a bug of ours gets here: what callers pass is checked at the operations' boundary.
    """
    is_readable = tensor.device.type == "cpu" and tensor.is_contiguous()
    if not is_readable or tensor.dtype not in dtypes:
        raise AssertionError((tensor.dtype, tensor.device, tensor.shape, tensor.stride()))


__all__ = ["require_contiguous"]
