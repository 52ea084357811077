"""What a connector demands of a batch: that it fits its tables, and holds tokens of theirs."""

from __future__ import annotations

import torch

from gramary.batch import Batch
from gramary.errors import ArgumentError, TokenError
from gramary.offload.memory.ring import RingShape
from gramary.table import Table


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


def check_tokens(batch: Batch, tables: tuple[Table, ...]) -> None:
    """Raises TokenError for the first token outside the smallest vocabulary.

    The history of a request without tokens may hold anything: it is part of no hash.
    """
    vocab_size = min(table.spec.vocab_size for table in tables)
    for name, tokens in (("token_ids", batch.token_ids), ("history", batch.history)):
        if tokens is None or not tokens.numel():
            continue
        low, high = torch.aminmax(tokens)
        if low >= 0 and high < vocab_size:
            continue
        is_wrong = (tokens < 0) | (tokens >= vocab_size)
        if name == "history":
            is_wrong &= (batch.query_start_loc.diff() > 0).unsqueeze(1)
        flat, is_wrong = tokens.reshape(-1), is_wrong.flatten()
        if not is_wrong.any():
            continue
        index = int(is_wrong.to(torch.uint8).argmax())
        raise TokenError(f"{name}[{index}]: expected 0 to {vocab_size - 1}, got {int(flat[index])}")


__all__ = ["check_tokens", "require_fit"]
