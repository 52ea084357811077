"""The arithmetic of the PLE state operations on blocks of tokens.

Rounding boundaries are those of `ops/reference/gate_conv.py`; shapes trail.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn.functional import silu


def reciprocal_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Returns rsqrt(mean(x^2) + eps) in float32, [..., 1], of x [..., H]."""
    return torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)


def apply_norm(x: torch.Tensor, r: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns x * r * (1 + weight) in x's dtype; x [..., S, H], r [..., S, 1], weight [S*H]."""
    return (x.float() * r * (1.0 + weight.float().view(x.shape[-2:]))).to(x.dtype)


def gate(
    residual: torch.Tensor,
    key: torch.Tensor,
    k_norm_weight: torch.Tensor,
    q_norm_weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Returns the gates [T, S, 1] of residual streams and keys [T, S, H], in their dtype."""
    k = apply_norm(key, reciprocal_norm(key, eps), k_norm_weight)
    q = apply_norm(residual, reciprocal_norm(residual, eps), q_norm_weight)
    d = (k * q).sum(dim=-1, keepdim=True) / math.sqrt(key.shape[-1])
    return in_float64(torch.sigmoid, d.abs().clamp_min(1e-6).sqrt() * d.sign())


def conv(
    columns: torch.Tensor, rows: torch.Tensor, conv_weight: torch.Tensor, dilation: int
) -> torch.Tensor:
    """Returns silu(convolution) [T, C] at some rows of a buffer of columns.

    Args:
        columns: [N, C], every token's column behind its request's earlier ones.
        rows: int64 [T], where the tokens' own columns are.
        conv_weight: [C, K], oldest tap first.
        dilation: rows between two taps.
    """
    num_taps = conv_weight.shape[1]
    y = torch.zeros(rows.shape[0], columns.shape[1], dtype=torch.float32, device="cpu")
    for tap in range(num_taps):
        taken = columns[rows - (num_taps - 1 - tap) * dilation]
        y += taken.float() * conv_weight[:, tap].float()
    return in_float64(silu, y.to(columns.dtype))


def in_float64(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Returns function(x), by float64 where x is float32.

    torch's float32 exponentials differ in the last bit between the body and the tail of a
    vector, and chunks of a prompt would differ from one piece with it. Rounded to 16 bits they
    are the same.
    """
    return function(x.double()).float() if x.dtype == torch.float32 else function(x)
