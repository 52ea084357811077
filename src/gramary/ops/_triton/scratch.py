"""Where a run keeps what its own later launches, and an export after it, need."""

from __future__ import annotations

import dataclasses

from gramary.ops.gate_conv import Caps

ALIGNMENT = 256


@dataclasses.dataclass(frozen=True)
class ScratchLayout:
    """Byte offsets of the parts of scratch, all of the last run in mode "mixed".

    From 0 on the gates, float32 [max_tokens, streams, 2]: g and r of every row.

    Attributes:
        flags_at: uint8 [max_tokens], 1 where a token is a body token (see `gate.py`).
        history_at: D [max_seqs, state_length, channels], the columns before the first token, oldest
            first, of each request whose run may overwrite them.
        nbytes: of everything.
    """

    flags_at: int
    history_at: int
    nbytes: int

    @classmethod
    def of(cls, caps: Caps) -> ScratchLayout:
        """Returns the layout of a plan's scratch; mode "decode" needs none."""
        if caps.mode == "decode":
            return cls(0, 0, 0)
        flags_at = _aligned(caps.max_tokens * caps.streams * 8)
        history_at = _aligned(flags_at + caps.max_tokens)
        num_columns = caps.max_seqs * caps.state_length
        return cls(
            flags_at, history_at, history_at + num_columns * caps.channels * caps.dtype.itemsize
        )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
