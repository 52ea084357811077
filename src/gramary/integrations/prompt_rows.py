"""The rows of one prompt that a model reads in chunks: requested ahead, taken chunk by chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from gramary.batch import Batch
from gramary.errors import RowFetchError
from gramary.offload import Connector
from gramary.offload.ticket import Ticket
from gramary.ops.hash import row_ids_of
from gramary.table import Table


class PromptRows:
    """Rows of one prompt's chunks, on their way through a connector.

    Order of calls, all from one thread: construct → `begin` (the first chunks are requested) →
    `take` in each forward, once a table → `end`, or `abandon` where any of them failed. A forward
    that turns out to run other tokens than the next chunk's gets nothing from here, and nothing is
    requested any more.

    Args:
        connector: nobody else may request or wait meanwhile.
        tables: the connector's.
        chunks: host batches, in the order of the forwards.
        num_ahead: chunks requested at once.

    Attributes:
        tables: the connector's tables.
        num_taken: chunks whose rows were taken from here, for every table.
    """

    def __init__(
        self,
        connector: Connector,
        tables: tuple[Table, ...],
        chunks: Sequence[Batch],
        num_ahead: int,
    ) -> None:
        self._connector = connector
        self.tables = tables
        self._chunks = deque(chunks)
        self._under_way: deque[tuple[Batch, Ticket]] = deque()
        self._differences: list[torch.Tensor] = []
        self._num_ahead = num_ahead
        self.num_taken = 0

    def begin(self) -> None:
        """Requests the first chunks.

        Raises:
            TokenError: a token lies outside the vocabulary.
            RowFetchError: nothing can be requested of the connector any more.
        """
        for _ in range(self._num_ahead):
            self._request_next()

    def take(
        self, table_index: int, row_ids: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor | None:
        """Returns the rows of one table of the forward under way, if they were requested.

        Args:
            table_index: which of the tables.
            row_ids: int64 [..., heads] on the table's device, as the model computed them.
            dtype: dtype of the rows.

        Returns:
            [..., heads, row_dim], the caller's own; None where they have to be looked up.

        Raises:
            RowFetchError: the rows could not be had.
        """
        if not self._under_way:
            return None
        batch, ticket = self._under_way[0]
        if not self._is_the_same(table_index, batch, row_ids):
            self.abandon()
            return None
        rows = self._connector.wait(ticket, table_index=table_index, dtype=dtype)
        if len(ticket.awaited) == len(self.tables):
            self._under_way.popleft()
            self.num_taken += 1
            self._request_next()
        return rows.view(*row_ids.shape, -1)

    def abandon(self) -> None:
        """Cancels what was not taken; more calls do nothing."""
        self._chunks.clear()
        for _, ticket in self._under_way:
            self._connector.cancel(ticket)
        self._under_way.clear()

    def end(self) -> None:
        """Cancels what was not taken, and makes sure that what was taken was right.

        Raises:
            RowFetchError: on CUDA, rows could not be had, or a forward ran other tokens than the
                prompt's; found out only now, and what the forwards computed is void.
        """
        self.abandon()
        if not self._differences:
            return
        # The one place that waits for the device; a token is picked from the result next.
        if any(torch.stack(self._differences).tolist()):
            raise RowFetchError(
                "a chunk's tokens were changed behind generate's back, so the rows requested for "
                "it are not its own: load with prefill_early_request=False"
            )
        self._connector.check()

    def _request_next(self) -> None:
        if self._chunks:
            batch = self._chunks.popleft()
            self._under_way.append((batch, self._connector.request(batch)))

    def _is_the_same(self, table_index: int, batch: Batch, row_ids: torch.Tensor) -> bool:
        """Returns False where the model's own row ids are not those that were requested."""
        spec, device = self.tables[table_index].spec, row_ids.device
        own = row_ids.reshape(-1, row_ids.shape[-1])
        if own.shape != (batch.num_tokens, spec.num_heads):
            return False
        requested = row_ids_of(spec, batch.flat(spec.history_length).to(device))
        if device.type == "cpu":
            return torch.equal(own, requested)
        # Nothing waits for the device here: `end` does, once.
        self._differences.append((own != requested).any())
        return True


__all__ = ["PromptRows"]
