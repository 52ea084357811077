"""The sticky error of GPU work: what was wrong first, kept on the device until it is asked for.

An error tensor is int64 [4] on the device, zero while all is well: kind, index, value, and how
many wrong items were met. The first wrong item of the first launch that meets one claims it (which
one of that launch's is not defined); later ones only count. Nothing here synchronises.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gramary.errors import RowIdError, TokenError

# Kinds, and what index and value then are.
TOKEN = tl.constexpr(1)  # place in token_ids, token id
HISTORY_TOKEN = tl.constexpr(2)  # place in history, flattened; token id
ROW_ID = tl.constexpr(3)  # place in row_ids, flattened; row id


@triton.jit
def report_first(p_error, m_wrong, kind, index, value):
    """Claims the error tensor for one wrong item, unless an earlier one has it."""
    zeros = index * 0
    num_before = tl.atomic_add(p_error + 3 + zeros, zeros + 1, mask=m_wrong, sem="relaxed")
    m_first = m_wrong & (num_before == 0)
    tl.store(p_error + zeros, zeros + kind, mask=m_first)
    tl.store(p_error + 1 + zeros, index, mask=m_first)
    tl.store(p_error + 2 + zeros, value, mask=m_first)


def new_error(device: torch.device | str) -> torch.Tensor:
    """Returns a fresh error tensor: int64 [4], zeros, on `device`."""
    return torch.zeros(4, dtype=torch.int64, device=device)


def error_of(error: torch.Tensor, *, vocab_size: int, num_rows: int) -> Exception | None:
    """Returns the exception that an error tensor stands for, or None; waits for its device.

    Args:
        error: int64 [4].
        vocab_size: of the table, for the message.
        num_rows: of the table, for the message.
    """
    kind, index, value, count = error.tolist()
    if kind == 0:
        return None
    others = f" (and {count - 1} more such reads)" if count > 1 else ""
    if kind == ROW_ID.value:
        return RowIdError(
            f"row_ids[{index}]: expected -1 or 0 to {num_rows - 1}, got {value}{others}"
        )
    name = "token_ids" if kind == TOKEN.value else "history"
    return TokenError(f"{name}[{index}]: expected 0 to {vocab_size - 1}, got {value}{others}")
