"""CPU backend of the windows: reading histories and exporting window checkpoints."""

from __future__ import annotations

import torch

from gramary.ops._cpu import gate_conv_math as pm
from gramary.ops._cpu.gate_conv_batch import Batch, Scratch
from gramary.ops.gate_conv import Binding, ExportStatus


def read_histories(binding: Binding, batch: Batch) -> torch.Tensor:
    """Returns the columns before each live request's first token, D [R, state_length, C]."""
    return read_columns(binding, batch.slots, batch.starts)


def read_columns(binding: Binding, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns the state_length columns before each position, oldest first; below 0 zero."""
    caps = binding.caps
    past = positions.unsqueeze(-1) + torch.arange(-caps.state_length, 0, device="cpu")
    columns = binding.conv_state[slots.unsqueeze(-1), past % caps.state_capacity]
    return columns.masked_fill_((past < 0).unsqueeze(-1), 0)


@torch.no_grad()
def export_checkpoint(
    binding: Binding, offsets: torch.Tensor, slots: torch.Tensor, status: torch.Tensor | None
) -> None:
    """Writes window checkpoints and their statuses; all three are [max_seqs, n]."""
    batch = Batch.read(binding)
    outcome = statuses(binding, batch, offsets, slots)
    if status is not None:
        status.copy_(outcome)
    entries = (outcome == ExportStatus.WRITTEN).nonzero()
    targets = slots[entries[:, 0], entries[:, 1]]
    ends = offsets[entries[:, 0], entries[:, 1]].long()
    # Where an entry's request is among the live ones, which are in order.
    owners = torch.searchsorted(batch.requests, entries[:, 0].contiguous())
    columns = columns_after(binding, batch, owners, ends)
    caps = binding.caps
    positions = (batch.starts[owners] + ends).unsqueeze(-1) + torch.arange(
        -caps.state_length, 0, device="cpu"
    )
    binding.conv_state[targets] = 0
    binding.conv_state[targets.unsqueeze(-1), positions % caps.state_capacity] = columns


def statuses(
    binding: Binding, batch: Batch, offsets: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """Returns the `ExportStatus` of every entry, int32 [max_seqs, n]; the last rule set wins."""
    lengths = torch.full(slots.shape[:1], -1, device="cpu").index_copy_(
        0, batch.requests, batch.lengths
    )
    is_live = (lengths >= 0).unsqueeze(-1)
    is_enabled = is_live & (slots >= 0)
    named, counts = torch.unique(slots[is_enabled], return_counts=True)
    outcome = torch.full(slots.shape, int(ExportStatus.WRITTEN), dtype=torch.int32, device="cpu")
    is_bad = (offsets < 1) | (offsets > lengths.unsqueeze(-1))
    outcome[is_bad] = ExportStatus.BAD_OFFSET
    outcome[torch.isin(slots, named[counts > 1])] = ExportStatus.DUPLICATE
    outcome[torch.isin(slots, batch.slots)] = ExportStatus.LIVE_SLOT
    outcome[slots >= binding.conv_state.shape[0]] = ExportStatus.OUT_OF_POOL
    outcome[~is_live.expand_as(slots)] = ExportStatus.NOT_LIVE
    outcome[slots < 0] = ExportStatus.DISABLED
    return outcome


def columns_after(
    binding: Binding, batch: Batch, owners: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """Returns the windows after some tokens of live requests, D [E, state_length, C].

    Args:
        binding: after its run.
        batch: its batch.
        owners: int64 [E], indices of live requests.
        ends: int64 [E], tokens run, at least 1.
    """
    caps = binding.caps
    if caps.mode == "decode":
        # A run that keeps the promise overwrites no column that its windows need.
        return read_columns(binding, batch.slots[owners], batch.starts[owners] + ends)
    scratch = Scratch.of(binding)
    steps = ends.unsqueeze(-1) + torch.arange(-caps.state_length, 0, device="cpu")
    tokens = (batch.begins[owners].unsqueeze(-1) + steps.clamp_min(0)).flatten()
    gates = scratch.gates[tokens].to(caps.dtype)
    u = gates * binding.value[tokens].unsqueeze(-2)
    n = pm.apply_norm(u, scratch.reciprocal_norms[tokens], binding.u_norm_weight)
    n = n.view(*steps.shape, caps.channels)
    requests = batch.requests[owners].unsqueeze(-1)
    history = scratch.histories[
        requests, (steps + caps.state_length).clamp_max(caps.state_length - 1)
    ]
    return torch.where((steps >= 0).unsqueeze(-1), n, history)
