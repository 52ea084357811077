"""A batch's live metadata, read once, and what a run keeps in scratch."""

from __future__ import annotations

import dataclasses
import math

import torch

from gramary.errors import ArgumentError
from gramary.ops.gate_conv import Binding, Caps


@dataclasses.dataclass(frozen=True)
class Batch:
    """The live requests of one run, R of them.

    Attributes:
        num_tokens: tokens of the batch, padding included.
        requests: int64 [R], their indices.
        slots: int64 [R], their slots.
        starts: int64 [R], position of their first token.
        begins: int64 [R], their first token in the batch.
        lengths: int64 [R], their tokens to run; 0 where more came than mode "decode" allows.
    """

    num_tokens: int
    requests: torch.Tensor
    slots: torch.Tensor
    starts: torch.Tensor
    begins: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def read(cls, binding: Binding) -> Batch:
        """Returns the batch that a binding's metadata describe now."""
        b, caps = binding, binding.caps
        num_tokens = min(max(int(b.num_tokens), 0), caps.max_tokens)
        num_seqs = min(max(int(b.num_seqs), 0), caps.max_seqs)
        slots = b.state_slot_ids[:num_seqs]
        requests = ((slots >= 0) & (slots < b.conv_state.shape[0])).nonzero().flatten()
        locs = read_locs(b.query_start_loc[: num_seqs + 1]).clamp_max(num_tokens)
        lengths = locs.diff()
        if caps.mode == "decode":
            lengths = lengths.where(lengths <= caps.max_decode_tokens, 0)
        starts = b.start_positions[requests]
        if (starts < 0).any():
            raise ArgumentError(f"start_positions: expected 0 or more, got {int(starts.min())}")
        return cls(
            num_tokens=num_tokens,
            requests=requests,
            slots=slots[requests],
            starts=starts,
            begins=locs[requests],
            lengths=lengths[requests],
        )

    def token_steps(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns, of all tokens to run, which live request each is of and its index in it."""
        owners = torch.repeat_interleave(self.lengths)
        firsts = self.lengths.cumsum(0) - self.lengths
        return owners, torch.arange(owners.shape[0], device="cpu") - firsts[owners]


def read_locs(query_start_loc: torch.Tensor) -> torch.Tensor:
    """Returns the boundaries as int64, or raises ArgumentError where they contradict."""
    locs = query_start_loc.long()
    if locs[0] != 0 or (locs.diff() < 0).any():
        raise ArgumentError(
            "query_start_loc: expected 0 first and no decrease up to element num_seqs = "
            f"{locs.shape[0] - 1}, got {locs[:16].tolist()}"
        )
    return locs


@dataclasses.dataclass(frozen=True)
class Scratch:
    """What a run in mode "mixed" leaves for an export, as views of the binding's scratch.

    Attributes:
        gates: float32 [max_tokens, S, 1].
        reciprocal_norms: float32 [max_tokens, S, 1], of the gated values.
        histories: D [max_seqs, state_length, C], the columns before each request's first token
            as they were before the run, oldest first.
    """

    gates: torch.Tensor
    reciprocal_norms: torch.Tensor
    histories: torch.Tensor

    @classmethod
    def of(cls, binding: Binding) -> Scratch:
        """Returns the views of a binding's scratch."""
        views, offset = [], 0
        for shape, dtype in scratch_parts(binding.caps):
            nbytes = math.prod(shape) * dtype.itemsize
            views.append(binding.scratch[offset:][:nbytes].view(dtype).view(shape))
            offset += nbytes
        return cls(*views)


def scratch_parts(caps: Caps) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Returns shape and dtype of the parts of a `Scratch`, in their order."""
    by_stream = (caps.max_tokens, caps.streams, 1)
    histories = (caps.max_seqs, caps.state_length, caps.channels)
    return (by_stream, torch.float32), (by_stream, torch.float32), (histories, caps.dtype)
