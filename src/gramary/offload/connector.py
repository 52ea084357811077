"""The engine's side: request a batch's rows early, wait for them where the layer needs them.

    ticket = connector.request(batch)       # at scheduling time, or before the forward's layers
    ...                                     # the forward before runs meanwhile
    rows = connector.wait(ticket)           # [T, heads * row_dim], where the PLE layer stands

A prompt-only batch takes the host lane: its rows are fetched while earlier forwards still run.
Every other batch takes the stream lane, in the order of the device's own work.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import torch

from gramary.arguments import require_integer, require_type
from gramary.batch import Batch
from gramary.errors import ArgumentError, ClosedError, GramaryError, RowFetchError
from gramary.lifetime import Closing
from gramary.offload.giving_up.quarantine import Quarantine
from gramary.offload.lanes.lane import Claim
from gramary.offload.memory.ring import RingShape
from gramary.offload.parts import Parts
from gramary.offload.routing import Router, require_fit
from gramary.offload.service.base import Service
from gramary.offload.setup import (
    as_tables,
    make_device,
    make_lanes,
    make_region,
    make_service,
    require_memory,
    require_worker,
    ring_shape,
)
from gramary.offload.ticket import Ticket
from gramary.process.bound import ProcessBound
from gramary.process.descriptor_limit import naming_shortage
from gramary.process.events import tell_of_process
from gramary.reading.arguments import result_buffer
from gramary.settings import Settings, chosen_settings
from gramary.table import Table
from gramary.tracing import Span, SpanLog


class Connector(Closing, ProcessBound):
    """Fetches rows of one or several tables for the batches of an engine.

    Calls come from one thread, the engine's. A table that is closed closes its connectors first. A
    call that raises has changed nothing, but for what its errors say; one that is interrupted, at
    any place, can be made again: `request` holds nothing that the caller has no ticket of, and a
    ticket can be awaited again, or canceled.

    On CUDA, `request` and `wait` queue work on the current stream and may be captured into a graph,
    together and once they have run eagerly with such tensors: a replay is a request of its own,
    with the tokens, history and query_start_loc that its tensors then hold, and calls nothing on
    the host. Graphs captured on one stream, and other work of that stream, must not overlap.

    Args:
        tables: the tables of the PLE layers, in the layers' order, on one device; one request
            fetches for all.
        max_tokens: most tokens of a batch, padding included.
        num_slots: results of the host lane that may be under way at once.
        worker: where the service runs: "thread" (in this process) or "process" (its own).
        server: address of a `RowServer`, whose worker process serves this connector beside those
            of other ranks; with worker="process".
        prefill_early_request: False sends prompt-only batches down the stream lane too.
        settings: None takes them from the environment; `poll`, `num_threads`,
            `request_timeout_s` and `force_doorbell` are used.

    Raises:
        ArgumentError: an argument is out of its range.
        CapacityError: the slots need more memory than is free; nothing was taken.
        LoadError, ClosedError: a table is not loaded, or closed.
        RowFetchError: the worker process does not come up.
        DescriptorLimitError: fewer file descriptors may be open than it needs.
        DependencyError: CUDA tables need Triton and cuda-bindings.
    """

    remedy = (
        "its threads and memory are this process's; pass the table's path on, open the table and "
        "make the connector there"
    )

    def __init__(
        self,
        tables: Table | Sequence[Table],
        *,
        max_tokens: int,
        num_slots: int = 2,
        worker: Literal["thread", "process"] = "thread",
        server: str | None = None,
        prefill_early_request: bool = True,
        settings: Settings | None = None,
    ) -> None:
        self._tables = as_tables(tables)
        require_type("prefill_early_request", prefill_early_request, bool)
        require_worker(worker, server)
        settings = chosen_settings(settings)
        self._is_closed = False
        self._owner_pid = os.getpid()
        self._lock = threading.RLock()
        self._router = Router.of(self._tables, settings, prefill_early_request)
        shape = ring_shape(self._tables, max_tokens, num_slots)
        self._limits = shape
        if self._router.why_direct is not None:
            # Nothing ever rings.
            shape = dataclasses.replace(shape, max_tokens=1, max_requests=1)
        self._spans = SpanLog("engine")
        # In the order of their making.
        self._claims: dict[Claim, None] = {}
        self._lanes_taken: Counter[str] = Counter()
        self._parts = Parts()
        # A connector that is dropped ends as one that is closed: nothing outlives its memory.
        self._finalizer = weakref.finalize(self, self._parts.close)
        # When the interpreter ends, threads may stand in any call; `interpreter_ends` sees to it.
        self._finalizer.atexit = False
        tell_of_process(self)
        try:
            # A table that is closed meanwhile waits, and closes what was made.
            with self._lock, naming_shortage("make a connector"):
                for table in self._tables:
                    table.close_first(self)
                self._make_parts(shape, worker, server, settings)
        except BaseException:
            self.close()
            raise

    def _make_parts(
        self, shape: RingShape, worker: str, server: str | None, settings: Settings
    ) -> None:
        """Makes memory, service, device and lanes; each is among the parts before it runs."""
        parts, tables = self._parts, self._tables
        require_memory(shape, tables[0].device, settings)
        parts.region = self._region = make_region(shape, tables[0].device)
        parts.service = self._service = make_service(worker, self._region, tables, settings, server)
        self._service.start()
        self._quarantine = Quarantine(self._region)
        parts.device = self._device = make_device(
            self._region, self._service, tables, settings, self._quarantine
        )
        if self._device is not None:
            self._device.start()
        self._lanes = make_lanes(
            self._region, self._service, tables, settings, self._quarantine, self._spans,
            self._device,
        )  # fmt: skip

    def __repr__(self) -> str:
        """Returns its sizes and how many tickets are under way, in one line."""
        limits, num_open = self._limits, sum(not claim.is_released for claim in list(self._claims))
        state = "closed" if self._is_closed else f"{num_open} tickets under way"
        return (
            f"<gramary.Connector: {len(self._tables)} tables on {self._tables[0].device}, "
            f"max_tokens={limits.max_tokens}, num_slots={limits.num_host_slots}, {state}>"
        )

    def request(self, batch: Batch) -> Ticket:
        """Asks for the rows of a batch and returns at once; host tensors are copied.

        Returns:
            The ticket to wait for, or to `cancel`; owned by the caller.

        Raises:
            SlotsBusyError: too many tickets were not awaited.
            RowFetchError: an earlier request failed on the way, or the lane is quarantined.
            TokenError: a host token lies outside the vocabulary.
            ArgumentError: the batch has more tokens than `max_tokens`, or is on another device, or
                its tensors do not fit each other any more.
            ClosedError: the connector was closed, or belongs to the process that this one was
                forked from.
        """
        require_type("batch", batch, Batch)
        claim: Claim | None = None
        try:
            with self._lock:
                self.check()
                # Its tensors may have been refilled since it was made of them.
                batch.check_tensors()
                require_fit(batch, self._limits, self._tables[0].device)
                if self._device:
                    self._device.canceled.settle()
                self._give_back_lost()
                lane, reason = self._router.choose(batch, self._lanes)
                claim = Claim(self._parts, lane, batch.num_tokens, batch.num_requests)
                # Before anything is taken for it: what is here will be given back.
                self._claims[claim] = None
                lane.request(claim, batch)
                self._count(claim, f"{lane.name}: {reason}")
                return Ticket(claim)
        except BaseException:
            if claim is not None:
                self._disown(claim)
            raise

    def _count(self, claim: Claim, lane: str) -> None:
        """Counts a request among those that took a lane."""
        number = self._lanes_taken[lane] + 1
        # Nothing is called between the two: an interrupt finds both of them done, or neither.
        claim.counted_as, self._lanes_taken[lane] = lane, number

    def _disown(self, claim: Claim) -> None:
        """Takes a request back whose caller gets no ticket; the next call gives back its slot."""
        claim.owner = None
        if claim.counted_as:
            number = self._lanes_taken[claim.counted_as] - 1
            self._lanes_taken[claim.counted_as], claim.counted_as = number, ""

    def wait(
        self,
        ticket: Ticket,
        *,
        table_index: int = 0,
        out: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Returns the rows of one table of a ticket, when they are there.

        The slot is released right behind the last table's rows. Each table is awaited once; a call
        that is interrupted, or refused, was none.

        Args:
            ticket: what `request` returned.
            table_index: which of the connector's `tables`, counted from 0.
            out: result buffer as for `Table.embed`.
            dtype: as for `Table.embed`.

        Returns:
            [T, num_heads * row_dim] (uint8: encoded) on the table's device; `out` if given.
            Padding has zero rows.

        Raises:
            RowFetchError: the rows could not be had; the result buffer holds NaN. On CUDA a
                result turns NaN in stream order, and a later call tells; the ticket that such a
                call is about stays open.
            ArgumentError: the ticket is not this connector's, or the table was awaited before.
            ClosedError: the connector was closed.
        """
        require_type("ticket", ticket, Ticket)
        table_index = require_integer("table_index", table_index)
        with self._lock:
            self._require_open()
            claim = self._require_awaitable(ticket, table_index)
            if self._device and (error := self._device.take_error(of_tokens=False)):
                raise error
            table = self._tables[table_index]
            shape, heads = (claim.num_tokens,), self._limits.num_heads[table_index]
            result = result_buffer(table.codec, shape, heads, table.device, out, dtype)
            try:
                self._take(claim, table_index, result)
                return result
            except BaseException:
                if not claim.is_released and table_index not in claim.failed:
                    # Whoever has the ticket may wait once more.
                    claim.awaited.discard(table_index)
                raise

    def cancel(self, ticket: Ticket) -> None:
        """Gives up what is left of a ticket, whether tables were awaited or not.

        Its slot becomes free. Nothing is done for one that has nothing left: it was awaited for
        every table, or canceled. On CUDA, a ticket of the stream lane, or one that tables were
        awaited for, is given up in the order of the current stream.

        Raises:
            ArgumentError: the ticket is not this connector's; on CUDA also, it was requested in a
                CUDA graph that is not the one being captured.
            ClosedError: the connector was closed.
        """
        require_type("ticket", ticket, Ticket)
        with self._lock:
            self._require_open()
            claim = ticket.claim
            if claim.home is not self._parts:
                raise ArgumentError(f"ticket: expected one of this connector, got {ticket}")
            if not claim.is_released:
                self._give_back(claim)
                claim.is_canceled = True

    def release_outputs(self) -> None:
        """Frees, at the end of a forward, the slots of tickets awaited for some tables only.

        Those of tickets not awaited at all are left: their forward is still to come.
        """
        with self._lock:
            if self._claims:
                self._require_open()
            for claim in [claim for claim in self._claims if claim.awaited]:
                self._give_back(claim)

    def check(self) -> None:
        """Raises what went wrong with an earlier request and was not told yet, once.

        Reads host memory only: a GPU's failures show once its stream came to them.

        Raises:
            RowFetchError: rows could not be had, or the worker died.
            TokenError: on CUDA, a token on the device lay outside the vocabulary.
            ClosedError: the connector was closed.
        """
        with self._lock:
            self._require_open()
            error: GramaryError | None = self._device.take_error() if self._device else None
            if error is None and (why := self._service.why_dead()):
                error = RowFetchError(f"{why}; close this connector and make a new one")
        if error is not None:
            raise error

    def stats(self) -> dict[str, Any]:
        """Returns a snapshot: the service's counters, and which lane batches took and why.

        `host_rows`, `host_bytes`, `disk_rows` and `disk_bytes` are what the service read.
        `dropped_spans` were not kept, because too many before were not taken (`take_spans`): of the
        engine, its device and the service, each of which keeps `gramary.tracing.spans.MAX_SPANS`.
        """
        with self._lock:
            self._require_open()
            is_open = [not (claim.is_released or claim.is_lost) for claim in self._claims]
            counters = self._region.counters()
            counters["dropped_spans"] += self._spans.num_dropped
            if self._device:
                counters["dropped_spans"] += self._device.spans.num_dropped
            return {
                "lanes": dict(+self._lanes_taken),
                "open_tickets": sum(is_open),
                **counters,
            }

    def trace(self, on: bool) -> None:
        """Starts or ends the keeping of spans: what is done for a request, by whom, when.

        On CUDA it waits for the device once. What a graph does is seen if it is captured while
        spans are kept: each of its replays then takes the times anew.
        """
        require_type("on", on, bool)
        with self._lock:
            self._require_open()
            self._spans.switch(on)
            if self._device:
                self._device.spans.switch(on)
            self._service.trace(on)

    def take_spans(self) -> list[Span]:
        """Returns the spans kept since the last call, by begin; on CUDA it waits for the device.

        Their names are `gramary.tracing.SPAN_NAMES`; of a graph's, the last replay's are given.
        """
        with self._lock:
            self._require_open()
            spans = [*self._spans.take(), *self._service.take_spans()]
            if self._device:
                spans += self._device.spans.take()
        return sorted(spans, key=lambda span: span.begin_ns)

    def close(self) -> None:
        """Ends the service, drops what is under way and gives the memory back.

        Waits for the device where there is one; graphs that were captured with this connector must
        not be replayed any more. A second call does nothing, but what an interrupted one left.
        """
        with self._lock:
            self._is_closed = True
            self._claims.clear()
            self._parts.close()
            self._finalizer.detach()

    def interpreter_ends(self, deadline: float) -> None:
        """Ends the service and refuses calls from now on; unmaps nothing.

        A thread that waits meanwhile is told that the service has stopped.
        """
        if self._is_closed or os.getpid() != self._owner_pid:
            return
        self._is_closed = True
        if self._parts.service is not None:
            self._parts.service.stop()
        is_ours = self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        try:
            if self._parts.device is not None:
                self._parts.device.close()
        finally:
            if is_ours:
                self._lock.release()

    def forked(self) -> None:
        """Lets a forked child be refused, whichever of its parent's threads was in a call."""
        self._lock = threading.RLock()

    @property
    def service(self) -> Service:
        """The running row service."""
        return self._service

    def _take(self, claim: Claim, table_index: int, out: torch.Tensor) -> None:
        """Takes a table's rows, and gives the slot back behind the last table's."""
        try:
            claim.lane.take(claim, table_index, out)
        except RowFetchError:
            # There are no rows to wait for any more.
            claim.failed.add(table_index)
            self._finish(claim, table_index)
            raise
        self._finish(claim, table_index)

    def _finish(self, claim: Claim, table_index: int) -> None:
        """Counts a table as awaited, and closes the books on a claim without tables left."""
        claim.awaited.add(table_index)
        if len(claim.awaited) == len(self._tables):
            self._give_back(claim)

    def _give_back(self, claim: Claim) -> None:
        """Frees the slot of a claim; may be called again until it is released."""
        if len(claim.awaited) == len(self._tables):
            claim.lane.release(claim)
        else:
            claim.lane.give_up(claim)
        # From here on the slot is free; the rest is tidying.
        claim.is_released = True
        self._claims.pop(claim, None)

    def _give_back_lost(self) -> None:
        """Gives back what nobody can wait for: tickets dropped, and calls that were broken off."""
        for claim in list(self._claims):
            if claim.is_released:
                self._claims.pop(claim, None)
                continue
            is_done = len(claim.awaited) == len(self._tables)
            if (claim.is_lost or is_done) and claim.lane.can_give_up(claim):
                self._give_back(claim)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the connector was closed")
        if os.getpid() != self._owner_pid:
            raise ClosedError(
                f"the connector belongs to process {self._owner_pid}, from which this one was "
                "forked: open the table and make the connector here"
            )

    def _require_awaitable(self, ticket: Ticket, table_index: int) -> Claim:
        claim = ticket.claim
        if claim not in self._claims or claim.is_released:
            raise ArgumentError(f"ticket: expected one under way, got {ticket}")
        if not 0 <= table_index < len(self._tables):
            raise ArgumentError(
                f"table_index: expected 0 to {len(self._tables) - 1}, got {table_index}"
            )
        if table_index in claim.awaited:
            raise ArgumentError(f"table_index: {table_index} of this ticket was awaited before")
        return claim


__all__ = ["Connector"]
