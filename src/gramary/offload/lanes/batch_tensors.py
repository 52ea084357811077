"""A batch as a layer's hash takes it: one that fits, its tokens, starts and the history needed."""

from __future__ import annotations

import torch

from gramary.batch import Batch
from gramary.errors import ArgumentError, TokenError
from gramary.offload.memory.ring import RingShape
from gramary.table import Table

# token_ids, query_start_loc, history.
BatchTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def tensors_for(batch: Batch, table: Table) -> BatchTensors:
    """Returns a batch's tensors, the history narrowed to the table's own."""
    return batch.token_ids, batch.query_start_loc, narrow(batch.history, table)


def narrow(history: torch.Tensor | None, table: Table) -> torch.Tensor | None:
    """Returns the newest columns of the widest layer's history that a table's hash needs."""
    return None if history is None else history[:, history.shape[1] - table.spec.history_length :]


def require_fit(batch: Batch, shape: RingShape, device: torch.device) -> None:
    """Raises ArgumentError for a batch that is too large, too narrow, or on another device."""
    if not batch.is_on_host and batch.token_ids.device != device:
        raise ArgumentError(
            f"batch: expected tensors on the CPU or {device} (the tables' device), got "
            f"{batch.token_ids.device}"
        )
    if batch.num_tokens > shape.max_tokens or batch.num_requests > shape.max_requests:
        raise ArgumentError(
            f"batch: expected at most max_tokens = {shape.max_tokens} tokens and "
            f"{shape.max_requests} requests, got {batch.num_tokens} and {batch.num_requests}"
        )
    if batch.history is not None and batch.history.shape[1] != shape.history_length:
        raise ArgumentError(
            f"batch.history: expected {shape.history_length} columns (ngram_size - 1), got "
            f"{batch.history.shape[1]}"
        )


def raise_wrong_token(batch: Batch, name: str, index: int, vocab_size: int) -> None:
    """Raises TokenError for a token outside the vocabulary: its argument, and its index there."""
    tokens = batch.token_ids if name == "token_ids" else batch.history
    assert tokens is not None
    value = int(tokens.reshape(-1)[index])
    raise TokenError(f"{name}[{index}]: expected 0 to {vocab_size - 1}, got {value}")


__all__ = ["BatchTensors", "narrow", "raise_wrong_token", "require_fit", "tensors_for"]
