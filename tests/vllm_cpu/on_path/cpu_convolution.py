"""The layer's short convolution in torch, with the arguments and the roundings of vLLM's kernel.

Source: `ple_conv` in vLLM 0.32.0, models/qwen4_exp/common/ops/ple.py.
"""

import itertools

import torch
from torch import Tensor

# A request in this slot has no state: vLLM pads batches with it.
NULL_SLOT = 0


def ple_conv(
    inputs: Tensor,
    residual: Tensor,
    conv_state: Tensor,
    conv_weights: Tensor,
    state_indices: Tensor,
    outer_residual: Tensor | None,
    *,
    mode: str,
    dilation: int,
    query_start_loc: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    has_initial_states: Tensor | None = None,
    spec_query_len: int = 1,
    token_indices: Tensor | None = None,
) -> None:
    """Adds the activated convolution of `inputs` [T, C] to `residual`, and moves the windows on.

    `conv_state` is [slots, C, window], oldest first; after a verified step the window to read
    begins at the last accepted token of that step.
    """
    num_tokens = inputs.shape[0] if token_indices is None else token_indices.numel()
    places = torch.arange(num_tokens) if token_indices is None else token_indices.long()
    bounds = _list_bounds(mode, num_tokens, query_start_loc, state_indices)
    state_len = (conv_weights.shape[1] - 1) * dilation
    outputs = torch.zeros(num_tokens, inputs.shape[1], dtype=residual.dtype)
    for request, (start, stop) in enumerate(bounds):
        slot = int(state_indices[request])
        if mode != "spec" and (slot == NULL_SLOT or stop <= start):
            continue
        shift = 0
        if mode == "spec":
            assert num_accepted_tokens is not None
            shift = min(max(int(num_accepted_tokens[request]) - 1, 0), spec_query_len - 1)
        readable = slot != NULL_SLOT and (
            mode == "spec" or has_initial_states is None or bool(has_initial_states[request])
        )
        window = conv_state[slot, :, shift : shift + state_len]
        window = window.clone() if readable else torch.zeros_like(window)
        stream = torch.cat([window.to(inputs.dtype), inputs[places[start:stop]].T], dim=1)
        outputs[start:stop] = _convolve(stream, conv_weights, dilation, residual.dtype)
        if slot != NULL_SLOT:
            _write_window(conv_state[slot], stream, state_len, mode, spec_query_len)
    _add(outputs, residual, outer_residual, places)


def _list_bounds(
    mode: str, num_tokens: int, query_start_loc: Tensor | None, state_indices: Tensor
) -> list[tuple[int, int]]:
    if mode == "decode":
        return [(token, token + 1) for token in range(num_tokens)]
    assert query_start_loc is not None
    ends = query_start_loc[: state_indices.numel() + 1].tolist()
    return list(itertools.pairwise(ends))


def _convolve(stream: Tensor, weights: Tensor, dilation: int, dtype: torch.dtype) -> Tensor:
    """Returns [tokens, C]: taps are summed in float32, rounded, activated and rounded again."""
    num_taps = weights.shape[1]
    num_tokens = stream.shape[1] - (num_taps - 1) * dilation
    total = torch.zeros(stream.shape[0], num_tokens)
    for tap in range(num_taps):
        part = stream[:, tap * dilation : tap * dilation + num_tokens].float()
        total += weights[:, tap, None].float() * part
    rounded = total.to(dtype).float()
    return (rounded * torch.sigmoid(rounded)).to(dtype).T


def _write_window(
    state: Tensor, stream: Tensor, state_len: int, mode: str, spec_query_len: int
) -> None:
    """Keeps the last inputs; of a step to verify, every window that it may be rolled back to."""
    num_tokens = stream.shape[1] - state_len
    if mode == "spec":
        kept = state_len - 1 + min(spec_query_len, num_tokens)
        state[:, :kept] = stream[:, 1 : 1 + kept].to(state.dtype)
    else:
        state[:, :state_len] = stream[:, num_tokens:].to(state.dtype)


def _add(outputs: Tensor, residual: Tensor, outer: Tensor | None, places: Tensor) -> None:
    """Without the outer residual the result replaces `residual` plus nothing, as in the kernel."""
    if outer is not None:
        outputs = residual[places] + outputs
        outputs = (outer[places].float() + outputs.float()).to(residual.dtype)
    residual[places] = outputs
