"""The direct lane: nothing is requested ahead; the table reads the rows when they are taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from gramary.batch import Batch
from gramary.offload.lanes.lane import Claim, Lane
from gramary.table import Table


class DirectLane(Lane):
    """Rows that `Table.embed` reads where they are needed; there is no slot to hold.

    Args:
        tables: the connector's tables.
    """

    name = "direct"
    title = "the direct lane"

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tuple(tables)

    def request(self, claim: Claim, batch: Batch) -> None:
        """Keeps the batch; host tensors are copied, device tensors must stay as they are."""
        claim.batch = own_copy(batch)

    def take(self, claim: Claim, table_index: int, out: torch.Tensor) -> None:
        """Reads a table's rows; see `Lane`."""
        table = self._tables[table_index]
        assert claim.batch is not None, claim
        batch = claim.batch.flat(table.spec.history_length)
        table.embed(batch.token_ids, batch.query_start_loc, batch.history, out=out)

    def release(self, claim: Claim) -> None:
        """Does nothing: there is no slot, and the batch goes with its ticket."""

    def give_up(self, claim: Claim) -> None:
        """Does nothing, likewise."""


def own_copy(batch: Batch) -> Batch:
    """Returns a batch whose host tensors are copies."""
    if not batch.is_on_host:
        return batch
    history = None if batch.history is None else batch.history.clone()
    tokens, starts = batch.token_ids.clone(), batch.query_start_loc.clone()
    return dataclasses.replace(batch, token_ids=tokens, query_start_loc=starts, history=history)


__all__ = ["DirectLane"]
