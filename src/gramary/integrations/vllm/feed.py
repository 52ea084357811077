"""The tables of a pipeline stage and the requests of its steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from gramary.batch import Batch
from gramary.errors import GramaryError, UnsupportedError
from gramary.integrations.vllm.step import StepPlan
from gramary.offload import Connector, Ticket
from gramary.table import Table


class RowFeed:
    """Rows for the forwards of one stage: requested by step, taken by layer.

    One thread drives it, the runner's; `check` may be called by another one.

    Args:
        tables: the stage's tables, by dense index.
        connector: of the tables, in the order of their indices.
        verifies: compare early tokens with those the forward reads.
    """

    def __init__(
        self, tables: dict[int, Table], connector: Connector, *, verifies: bool = False
    ) -> None:
        self._tables = tables
        self._places = {index: place for place, index in enumerate(tables)}
        self._connector = connector
        self._verifies = verifies
        self._plan: StepPlan | None = None
        self._early: tuple[Ticket, Batch] | None = None
        self._late: Ticket | None = None
        self._num_taken = 0
        self._steps: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._failure: GramaryError | None = None
        self._num_different: torch.Tensor | None = None

    def table(self, table_index: int) -> Table:
        """Returns a table by its dense index."""
        return self._tables[table_index]

    def width(self, table_index: int) -> int:
        """Returns the decoded values of one token."""
        spec = self._tables[table_index].spec
        return spec.num_heads * spec.row_dim

    def begin(self, plan: StepPlan) -> None:
        """Requests the early rows of a step whose forward comes next.

        Raises:
            GramaryError: as `check`, for any step before.
        """
        self.check()
        self.drop()
        self._plan = plan
        self._steps[plan.way] += 1
        self._tokens["early"] += plan.num_early_tokens
        self._tokens["late"] += plan.num_late_tokens
        if plan.chunks:
            batch = Batch.from_prompts(
                next(iter(self._tables.values())).spec,
                [chunk.prompt for chunk in plan.chunks],
                [chunk.start for chunk in plan.chunks],
                [chunk.length for chunk in plan.chunks],
            )
            self._early = (self._connector.request(batch), batch)

    def request(
        self, token_ids: torch.Tensor, query_start_loc: torch.Tensor, history: torch.Tensor
    ) -> None:
        """Requests, in stream order, the rows that were not requested early.

        Args:
            token_ids: [T] on the device, padding included.
            query_start_loc: int32 [R+1]; tokens from its last element on are padding.
            history: [R, ngram_size-1].
        """
        num_requests = query_start_loc.numel() - 1
        if self._early is not None and not _is_capturing(token_ids):
            assert self._plan is not None
            num_requests = self._plan.num_late_requests
            token_ids = token_ids[: self._plan.num_late_tokens]
        if num_requests:
            self._late = self._connector.request(
                _batch(token_ids, query_start_loc[: num_requests + 1], history[:num_requests])
            )

    def take(self, table_index: int, token_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows of a step for one layer.

        Args:
            table_index: the layer's table.
            token_ids: [T] on the device, as the forward reads them.
            out: [T, width] on the device.

        Raises:
            RowFetchError: on the CPU, rows could not be had.
        """
        place = self._places[table_index]
        first = 0 if self._late is None else self._num_late_rows(out)
        if self._late is not None:
            self._connector.wait(self._late, table_index=place, out=out[:first])
        if self._early is not None and not _is_capturing(token_ids):
            ticket, batch = self._early
            end = first + batch.num_tokens
            self._connector.wait(ticket, table_index=place, out=out[first:end])
            if self._verifies:
                self._verify(batch, token_ids[first:end])
            first = end
        out[first:].zero_()
        self._num_taken += 1
        if self._num_taken == len(self._tables):
            self._early = self._late = self._plan = None
            self._num_taken = 0

    def _num_late_rows(self, out: torch.Tensor) -> int:
        if self._early is None:
            return out.shape[0]
        assert self._plan is not None
        return self._plan.num_late_tokens

    def drop(self) -> None:
        """Gives up what a step requested and did not take: it raised, or ran as a whole graph."""
        early, late = self._early, self._late
        self._early = self._late = self._plan = None
        self._num_taken = 0
        for ticket in (early[0] if early else None, late):
            if ticket is not None:
                self._connector.cancel(ticket)

    def check(self) -> None:
        """Raises what went wrong with any step so far, at every call from then on.

        Raises:
            RowFetchError, TokenError: as `Connector.check`.
            UnsupportedError: tokens that were read ahead are not those of the forward.
        """
        if self._failure is None:
            try:
                self._connector.check()
                if self._num_different is not None and int(self._num_different):
                    raise UnsupportedError(
                        f"gramary: {int(self._num_different)} tokens of early requests differ from "
                        "those that the forward read; report this, and set prefill_early_request "
                        "to false"
                    )
            except GramaryError as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure

    def stats(self) -> dict[str, Any]:
        """Returns which way the steps went and why, and the counters of connector and tables."""
        return {
            "steps": dict(self._steps),
            "tokens": dict(self._tokens),
            "connector": self._connector.stats(),
            "tables": {index: table.stats(check=False) for index, table in self._tables.items()},
        }

    def close(self) -> None:
        """Ends the connector and closes the tables; a second call does nothing."""
        self._early = self._late = self._plan = None
        self._connector.close()
        for table in self._tables.values():
            table.close()

    def _verify(self, batch: Batch, token_ids: torch.Tensor) -> None:
        if self._num_different is None:
            self._num_different = torch.zeros((), dtype=torch.int64, device=token_ids.device)
        self._num_different += (batch.token_ids.to(token_ids.device) != token_ids).sum()


def _batch(token_ids: torch.Tensor, query_start_loc: torch.Tensor, history: torch.Tensor) -> Batch:
    # On the host the end of the requests is a number; on a device kernels read it.
    num_padding = token_ids.numel() - int(query_start_loc[-1]) if token_ids.is_cpu else 0
    return Batch(token_ids, query_start_loc, history=history, num_padding=num_padding)


def _is_capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


__all__ = ["RowFeed"]
