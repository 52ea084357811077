"""CPU backend of the PLE state operations: the whole batch at once, in torch.

Temporaries are allocated, the metadata are read, and those that contradict each other are
refused. Everything else is as `gramary.ple` says, on the rounding boundaries of
`ops/reference/gate_conv.py`.
"""

from __future__ import annotations

import math

import torch

from gramary.ops._cpu import gate_conv_math as pm
from gramary.ops._cpu.gate_conv_batch import Batch, Scratch, scratch_parts
from gramary.ops._cpu.window import export_checkpoint, read_histories
from gramary.ops.gate_conv import Binding, Caps

__all__ = ["export_checkpoint", "prepare", "run", "scratch_nbytes"]

# Channels worked on at once: the temporaries of a block of tokens stay in the cache.
BLOCK_ELEMENTS = 1 << 18


def scratch_nbytes(caps: Caps) -> int:
    """Returns the bytes of a `Scratch`; none in mode "decode"."""
    if caps.mode == "decode":
        return 0
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in scratch_parts(caps))


def prepare(caps: Caps) -> object:  # noqa: ARG001
    """Has nothing to compile."""
    return None


@torch.no_grad()
def run(binding: Binding, eps: float) -> None:
    """Writes `binding.out` and the windows of the live requests."""
    b, caps = binding, binding.caps
    batch = Batch.read(b)
    owners, steps = batch.token_steps()
    tokens = batch.begins[owners] + steps
    gates, reciprocal_norms = reduce_tokens(b, tokens, eps)
    histories = read_histories(b, batch)
    if caps.mode == "mixed":
        keep_for_export(b, batch, tokens, gates, reciprocal_norms, histories)
    # Every request's history, then its tokens, so that a tap is a fixed number of rows away.
    rows = torch.arange(tokens.shape[0], device="cpu") + (owners + 1) * caps.state_length
    columns = b.out.new_empty(tokens.shape[0] + len(histories) * caps.state_length, caps.channels)
    is_history = torch.ones(columns.shape[0], dtype=torch.bool, device="cpu").index_fill_(
        0, rows, False
    )
    columns[is_history] = histories.flatten(0, 1)
    for block in blocks(tokens, caps):
        u = gates[block] * b.value[tokens[block]].unsqueeze(-2)
        n = pm.apply_norm(u, reciprocal_norms[block], b.u_norm_weight)
        columns[rows[block]] = n.flatten(-2)
    write_outputs(b, batch, tokens, gates, columns, rows)
    write_windows(b, batch, owners, steps, columns, rows)


def blocks(tokens: torch.Tensor, caps: Caps) -> list[slice]:
    """Returns slices that cover the tokens, of at most BLOCK_ELEMENTS channels each."""
    size = max(1, BLOCK_ELEMENTS // caps.channels)
    return [slice(begin, begin + size) for begin in range(0, tokens.shape[0], size)]


def reduce_tokens(
    binding: Binding, tokens: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gates, D [T, S, 1], and the gated values' reciprocal norms, float32."""
    b, caps = binding, binding.caps
    gates = b.value.new_empty(tokens.shape[0], caps.streams, 1)
    reciprocal_norms = gates.new_empty(gates.shape, dtype=torch.float32)
    for block in blocks(tokens, caps):
        at = tokens[block]
        gates[block] = pm.gate(b.residual[at], b.key[at], b.k_norm_weight, b.q_norm_weight, eps)
        u = gates[block] * b.value[at].unsqueeze(-2)
        reciprocal_norms[block] = pm.reciprocal_norm(u, eps)
    return gates, reciprocal_norms


def keep_for_export(
    binding: Binding,
    batch: Batch,
    tokens: torch.Tensor,
    gates: torch.Tensor,
    reciprocal_norms: torch.Tensor,
    histories: torch.Tensor,
) -> None:
    """Fills the scratch that `export_checkpoint` reads after a run in mode "mixed"."""
    scratch = Scratch.of(binding)
    scratch.gates[tokens] = gates.float()
    scratch.reciprocal_norms[tokens] = reciprocal_norms
    scratch.histories[batch.requests] = histories


def write_outputs(
    binding: Binding,
    batch: Batch,
    tokens: torch.Tensor,
    gates: torch.Tensor,
    columns: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    """Writes the contributions of the tokens run, and zero (or the residual) for the others."""
    b, caps = binding, binding.caps
    is_idle = torch.ones(batch.num_tokens, dtype=torch.bool, device="cpu").index_fill_(
        0, tokens, False
    )
    idle = is_idle.nonzero().flatten()
    b.out[idle] = b.residual[idle] if b.add_residual else 0
    for block in blocks(tokens, caps):
        at = tokens[block]
        u = gates[block] * b.value[at].unsqueeze(-2)
        c = pm.conv(columns, rows[block], b.conv_weight, caps.dilation)
        contribution = u + c.view_as(u)
        b.out[at] = b.residual[at] + contribution if b.add_residual else contribution


def write_windows(
    binding: Binding,
    batch: Batch,
    owners: torch.Tensor,
    steps: torch.Tensor,
    columns: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    """Writes the newest min(q, state_capacity) columns of every live request into its slot."""
    caps = binding.caps
    newest = (steps >= batch.lengths[owners] - caps.state_capacity).nonzero().flatten()
    slots = batch.slots[owners[newest]]
    positions = batch.starts[owners[newest]] + steps[newest]
    binding.conv_state[slots, positions % caps.state_capacity] = columns[rows[newest]]
