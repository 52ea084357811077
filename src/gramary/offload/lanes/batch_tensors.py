"""A batch as a layer's hash takes it: its tokens, starts and the history needed."""

from __future__ import annotations

import torch

from gramary.batch import Batch
from gramary.table import Table

# token_ids, query_start_loc, history.
BatchTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def tensors_for(batch: Batch, table: Table) -> BatchTensors:
    """Returns a batch's tensors, the history narrowed to the table's own."""
    return batch.token_ids, batch.query_start_loc, narrow(batch.history, table)


def narrow(history: torch.Tensor | None, table: Table) -> torch.Tensor | None:
    """Returns the newest columns of the widest layer's history that a table's hash needs."""
    return None if history is None else history[:, history.shape[1] - table.spec.history_length :]


__all__ = ["BatchTensors", "narrow", "tensors_for"]
