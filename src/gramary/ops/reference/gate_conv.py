"""The stateful part of a PLE layer, in plain torch, request by request: the truth.

In the field's notation, per token t and stream s (shapes trail; S streams of H, C = S*H, D the
model's dtype):

    k = round(norm(key, w_k))                                    # [S, H]
    q = round(norm(residual, w_q))                               # [S, H]
    d = round(round(sum_h round(k * q)) / sqrt(H))               # [S]
    g = round(sigmoid(round(sign(d) * round(sqrt(max(|d|, 1e-6))))))   # [S]
    u = round(g * value)                                         # [S, H]
    n = round(norm(u, w_u))                                      # [C]
    y = round(sum_j w[:, j] * n[t - (K-1-j) * dilation])         # [C], oldest tap first
    c = round(silu(y))
    contribution = round(u + c);  out = round(residual + contribution)

    norm(x, w) = x * rsqrt(mean(x^2) + eps) * (1 + w), per stream, in float32

Rounding boundaries. Every `round` is to D, the model's dtype, and everything between two of them
is float32; in float32 `round` does nothing. Those are the boundaries of Hugging Face's
`Qwen4ExpTextPLELayer` run in dtype D, and every backend follows them. 1e-6 itself is rounded to
D before the comparison (9.98e-07 in bfloat16). Sums over h (the two means and the dot product)
accumulate in float32 in an order that a backend is free to choose; nothing else is: the sum over
taps runs from the oldest tap to the newest. So g may differ between backends in the last bit of
D, and where it does not, u, c and out are equal bit for bit but for the float32 reciprocal norm.
`tests/support/tolerances.py` holds the bounds.

u and n depend on a token only through `value`, g and the reciprocal norm
r = rsqrt(mean(u^2) + eps): a backend may keep those two float32 numbers a token and stream and
compute u = round(g * value) and n = round(u * r * (1 + w)) again wherever it needs them.

Source: `Qwen4ExpTextPLELayer` in transformers 5.24, models/qwen4_exp/modeling_qwen4_exp.py.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import silu

from gramary.ops.gate_conv import Binding


def norm_ref(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Returns the RMS norm per stream, rounded to the dtype of `x`.

    Args:
        x: D [..., S, H].
        weight: D [S*H], applied as 1 + weight.
        eps: added to the mean square.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (normed * (1.0 + weight.float().view(x.shape[-2:]))).to(x.dtype)


def gate_ref(
    residual: torch.Tensor,
    key: torch.Tensor,
    k_norm_weight: torch.Tensor,
    q_norm_weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Returns the gates g, D [..., S], of residual streams and keys, both D [..., S, H]."""
    k = norm_ref(key, k_norm_weight, eps)
    q = norm_ref(residual, q_norm_weight, eps)
    d = (k * q).sum(dim=-1) / math.sqrt(key.shape[-1])
    root = d.abs().clamp_min(1e-6).sqrt() * d.sign()
    return torch.sigmoid(wide_ref(root)).to(d.dtype)


def conv_ref(
    history: torch.Tensor, n: torch.Tensor, conv_weight: torch.Tensor, dilation: int
) -> torch.Tensor:
    """Returns c = silu(convolution), D [T, C], of one request.

    Args:
        history: D [state_length, C], the normed columns before the first token, oldest first.
        n: D [T, C], those of the tokens.
        conv_weight: D [C, K], oldest tap first.
        dilation: tokens between two taps.
    """
    columns = torch.cat([history, n]).float()
    num_taps = conv_weight.shape[1]
    y = torch.zeros(n.shape, dtype=torch.float32, device="cpu")
    for tap in range(num_taps):
        y = y + conv_weight[:, tap].float() * columns[tap * dilation :][: n.shape[0]]
    return silu(wide_ref(y.to(n.dtype))).to(n.dtype)


def wide_ref(x: torch.Tensor) -> torch.Tensor:
    """Returns float32 as float64, others as they are: where an exponential is computed.

    torch's float32 exponentials depend in the last bit on an element's place in the vector.
    """
    return x.double() if x.dtype == torch.float32 else x


def request_ref(
    binding: Binding, tokens: slice, history: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the contribution, D [q, S, H], and the columns n, D [q, C], of one request.

    Args:
        binding: where the inputs are.
        tokens: the request's tokens in the batch.
        history: D [state_length, C], oldest first.
        eps: the norms' epsilon.
    """
    b = binding
    g = gate_ref(b.residual[tokens], b.key[tokens], b.k_norm_weight, b.q_norm_weight, eps)
    u = g.unsqueeze(-1) * b.value[tokens].unsqueeze(-2)
    n = norm_ref(u, b.u_norm_weight, eps).flatten(-2)
    c = conv_ref(history, n, b.conv_weight, b.caps.dilation)
    return u + c.view_as(u), n


def gate_conv_ref(binding: Binding, *, eps: float) -> torch.Tensor:
    """Does what `gramary.ple.run` does to a binding on the CPU, one request after the other."""
    b, caps = binding, binding.caps
    num_tokens = min(max(int(b.num_tokens), 0), caps.max_tokens)
    contribution = torch.zeros_like(b.out[:num_tokens])
    for request, slot in live_requests(b):
        tokens = request_tokens(b, request)
        start = int(b.start_positions[request])
        window = {p: b.conv_state[slot, p % caps.state_capacity].clone()
                  for p in range(max(start - caps.state_length, 0), start)}  # fmt: skip
        history = window_columns(binding, window, start)
        contribution[tokens], n = request_ref(b, tokens, history, eps)
        for step in range(n.shape[0]):
            b.conv_state[slot, (start + step) % caps.state_capacity] = n[step]
    if b.add_residual:
        contribution = b.residual[:num_tokens] + contribution
    b.out[:num_tokens] = contribution
    return b.out


def live_requests(binding: Binding) -> list[tuple[int, int]]:
    """Returns (request, slot) of every live request, in order."""
    b, caps = binding, binding.caps
    num_seqs = min(max(int(b.num_seqs), 0), caps.max_seqs)
    slots = b.state_slot_ids[:num_seqs].tolist()
    return [(i, slot) for i, slot in enumerate(slots) if 0 <= slot < b.conv_state.shape[0]]


def request_tokens(binding: Binding, request: int) -> slice:
    """Returns the tokens that are run for a live request, as a slice of the batch.

    None at or beyond num_tokens; and none at all where mode "decode" was promised fewer.
    """
    b, caps = binding, binding.caps
    num_tokens = min(max(int(b.num_tokens), 0), caps.max_tokens)
    begin, end = (min(loc, num_tokens) for loc in b.query_start_loc[request:][:2].tolist())
    if caps.mode == "decode" and end - begin > caps.max_decode_tokens:
        return slice(begin, begin)
    return slice(begin, end)


def window_columns(
    binding: Binding, window: dict[int, torch.Tensor], position: int
) -> torch.Tensor:
    """Returns the state_length columns before `position`, oldest first; missing ones are zero."""
    caps = binding.caps
    zero = torch.zeros(caps.channels, dtype=caps.dtype, device="cpu")
    past = range(position - caps.state_length, position)
    return torch.stack([window.get(p, zero) for p in past])
