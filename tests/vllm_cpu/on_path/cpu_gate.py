"""The layer's gate in torch, with the arguments and the roundings of vLLM's kernel.

Source: `_ple_gate_kernel` in vLLM 0.32.0, models/qwen4_exp/common/ops/ple.py.
"""

import math

import torch
from torch import Tensor


def ple_gate(
    key: Tensor,
    value: Tensor,
    hidden: Tensor,
    norm_key_w: Tensor,
    norm_query_w: Tensor,
    norm_conv_w: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Returns the gated values and those normalised, both [T, streams * H] as `key` and `hidden`.

    `value` is [T, H].
    """
    dtype, size = key.dtype, value.shape[1]
    keys = _normalise(key, norm_key_w, eps, size).to(dtype)
    queries = _normalise(hidden, norm_query_w, eps, size).to(dtype)
    products = (keys.float() * queries.float()).to(dtype)
    dots = products.float().sum(-1).to(dtype).float()
    scores = (dots / math.sqrt(size)).to(dtype).float()
    magnitudes = scores.abs().clamp_min(1e-6).sqrt().to(dtype).float()
    gates = torch.sigmoid(scores.sign() * magnitudes).to(dtype).float()
    gated = (gates.unsqueeze(-1) * value.float().unsqueeze(1)).flatten(1).to(dtype)
    return gated, _normalise(gated, norm_conv_w, eps, size).flatten(1).to(dtype)


def _normalise(x: Tensor, weight: Tensor, eps: float, size: int) -> Tensor:
    """Returns [T, streams, H] in float32."""
    streams = x.float().unflatten(1, (-1, size))
    scaled = streams * torch.rsqrt(streams.square().mean(-1, keepdim=True) + eps)
    return scaled * (1 + weight.float().view(-1, size))
