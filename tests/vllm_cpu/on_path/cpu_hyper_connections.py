"""The glue between the model's streams in torch, with the arguments of vLLM's kernels.

The interpreter spends nine tenths of a run in these five kernels, each called twice a layer.

Source: vLLM 0.32.0, models/qwen4_exp/nvidia/ops/hc.py; it computes in float32 and rounds what it
stores. Tensors of the streams are [T, streams * H], of a block [T, H].
"""

import torch
from torch import Tensor


def grouped_gemma_rmsnorm(x: Tensor, weight: Tensor, eps: float, num_groups: int) -> Tensor:
    """Normalises each group; one weight for all groups, or one each."""
    groups = x.float().unflatten(1, (num_groups, -1))
    scaled = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    weights = weight.float().reshape(-1, groups.shape[-1])
    return (scaled + scaled * weights).flatten(1).to(x.dtype)


def hc_silu(x: Tensor, hc_count: int) -> Tensor:
    """Returns the SiLU of `x` divided by the number of streams."""
    return torch.nn.functional.silu(x.float() / hc_count).to(x.dtype)


def hc_gate_mix(x: Tensor, gate: Tensor, hc_count: int) -> Tensor:
    """Returns [T, H]: the mean of the gated streams."""
    gated = torch.sigmoid(gate.float()) * x.float()
    return gated.unflatten(1, (hc_count, -1)).mean(1).to(x.dtype)


def hc_combine(
    residual: Tensor, block_output: Tensor, injection_logits: Tensor | None, hc_count: int
) -> Tensor:
    """Adds the block's output to every stream, as strongly as the logits say."""
    block = block_output.float().unsqueeze(1)
    if injection_logits is not None:
        block = block * (2 * torch.sigmoid(injection_logits.float() / hc_count)).unsqueeze(2)
    streams = residual.float().unflatten(1, (hc_count, -1))
    return (streams + block).flatten(1).to(residual.dtype)


def hc_combine_norm(
    residual: Tensor,
    block_output: Tensor,
    injection_logits: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    hc_count: int,
) -> tuple[Tensor, Tensor]:
    """Returns the combined streams, and those normalised."""
    combined = hc_combine(residual, block_output, injection_logits, hc_count)
    return combined, grouped_gemma_rmsnorm(combined, norm_weight, eps, hc_count)
