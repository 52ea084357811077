"""Exporting window checkpoints, in plain torch, entry by entry: the truth."""

from __future__ import annotations

import collections
import dataclasses

import torch

from gramary.ops.gate_conv import Binding, ExportStatus
from gramary.ops.reference.gate_conv import (
    live_requests,
    request_ref,
    request_tokens,
    window_columns,
)


def export_ref(
    binding: Binding,
    *,
    offsets: torch.Tensor,
    slots: torch.Tensor,
    eps: float,
    conv_state_before: torch.Tensor,
    residual_before: torch.Tensor,
) -> torch.Tensor:
    """Does what `gramary.ple.export_checkpoint` does, and returns the statuses.

    Args:
        binding: after its run, on the CPU.
        offsets: int32 [max_seqs, n].
        slots: int64 [max_seqs, n].
        eps: the epsilon of the run.
        conv_state_before: the pool as it was before the run.
        residual_before: the residual as it was before the run (`out` may have replaced it).
    """
    status = status_ref(binding, offsets=offsets, slots=slots)
    before = dataclasses.replace(binding, conv_state=conv_state_before, residual=residual_before)
    for request, column in (status == ExportStatus.WRITTEN).nonzero().tolist():
        offset = int(offsets[request, column])
        window = window_after_ref(before, request, offset, eps)
        binding.conv_state[int(slots[request, column])] = window
    return status


def status_ref(binding: Binding, *, offsets: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Returns the `ExportStatus` of every entry, int32 [max_seqs, n]: the first that matches."""
    live = dict(live_requests(binding))
    lengths = {}
    for request in live:
        tokens = request_tokens(binding, request)
        lengths[request] = tokens.stop - tokens.start
    named = collections.Counter(
        slot for request in live for slot in slots[request].tolist() if slot >= 0
    )

    def status_of(request: int, slot: int, offset: int) -> ExportStatus:
        if slot < 0:
            return ExportStatus.DISABLED
        if request not in live:
            return ExportStatus.NOT_LIVE
        if slot >= binding.conv_state.shape[0]:
            return ExportStatus.OUT_OF_POOL
        if slot in live.values():
            return ExportStatus.LIVE_SLOT
        if named[slot] > 1:
            return ExportStatus.DUPLICATE
        if not 1 <= offset <= lengths[request]:
            return ExportStatus.BAD_OFFSET
        return ExportStatus.WRITTEN

    rows = [
        [status_of(i, slot, offset) for slot, offset in zip(row, at, strict=True)]
        for i, (row, at) in enumerate(zip(slots.tolist(), offsets.tolist(), strict=True))
    ]
    return torch.tensor(rows, dtype=torch.int32, device="cpu").view(slots.shape)


def window_after_ref(binding: Binding, request: int, offset: int, eps: float) -> torch.Tensor:
    """Returns the window, D [state_capacity, C], as it stands after `offset` tokens of a run.

    Args:
        binding: its state before the run.
        request: a live request.
        offset: how many of its tokens are run.
        eps: the norms' epsilon.
    """
    caps = binding.caps
    slot = int(binding.state_slot_ids[request])
    start = int(binding.start_positions[request])
    past = range(max(start - caps.state_length, 0), start)
    columns = {p: binding.conv_state[slot, p % caps.state_capacity] for p in past}
    tokens = request_tokens(binding, request)
    history = window_columns(binding, columns, start)
    _, n = request_ref(binding, slice(tokens.start, tokens.start + offset), history, eps)
    columns |= {start + step: n[step] for step in range(offset)}
    end = start + offset
    window = torch.zeros(caps.state_capacity, caps.channels, dtype=caps.dtype, device="cpu")
    for p in range(max(end - caps.state_length, 0), end):
        window[p % caps.state_capacity] = columns[p]
    return window
