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
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import torch

from gramary.arguments import require_integer, require_type
from gramary.batch import Batch
from gramary.errors import ArgumentError, ClosedError, GramaryError, RowFetchError
from gramary.lifetime import Closing
from gramary.offload.batch_tensors import check_tokens, require_fit, tensors_for
from gramary.offload.lanes import HostLane
from gramary.offload.region import Region
from gramary.offload.routing import Router
from gramary.offload.service import Service
from gramary.offload.setup import (
    as_tables,
    make_region,
    make_side,
    require_worker,
    ring_shape,
    start_service,
)
from gramary.offload.sides import Side
from gramary.offload.ticket import Ticket, unasked
from gramary.reading.arguments import result_buffer
from gramary.settings import Settings, chosen_settings
from gramary.table import Table
from gramary.tracing import Span, SpanLog


class Connector(Closing):
    """Fetches rows of one or several tables for the batches of an engine.

    Calls come from one thread, the engine's. A table that is closed closes its connectors first.
    On CUDA, `request` and `wait` queue work on the current stream and may be captured into a graph,
    together and once they have run eagerly with such tensors: a replay is a request of its own,
    with the tokens, history and query_start_loc that its tensors then hold, and calls nothing on
    the host. Graphs captured on one stream, and other work of that stream, must not overlap.

    Args:
        tables: the PLE layers' tables, in the layers' order, on one device; one request fetches
            for all.
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
        LoadError, ClosedError: a table is not loaded, or closed.
        RowFetchError: the worker process does not come up.
        DependencyError: CUDA tables need Triton and cuda-bindings.
    """

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
        # Nothing to close until the end of this method.
        self._is_closed = True
        self._owner_pid = os.getpid()
        self._lock = threading.RLock()
        for table in self._tables:
            table.close_first(self)
        self._router = Router.of(self._tables, settings, prefill_early_request)
        shape = ring_shape(self._tables, max_tokens, num_slots)
        self._limits = shape
        if self._router.why_none is not None:
            # Nothing ever rings.
            shape = dataclasses.replace(shape, max_tokens=1, max_requests=1)
        self._spans = SpanLog("engine")
        self._region = make_region(shape, self._tables[0].device)
        try:
            self._service = start_service(worker, self._region, self._tables, settings, server)
            try:
                self._side = make_side(
                    self._region, self._service, self._tables, settings, self._spans
                )
            except BaseException:
                self._service.stop()
                raise
        except BaseException:
            self._region.close()
            raise
        self._host_lane = HostLane(self._region, self._side.quarantine, self._spans)
        self._open_tickets: list[Ticket] = []
        self._lanes_taken: Counter[str] = Counter()
        # Of a connector that is dropped, nothing may outlive the memory that it reads.
        self._finalizer = weakref.finalize(
            self, shut_down, self._service, self._side, self._region, self._owner_pid
        )
        self._is_closed = False

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
        with self._lock:
            self.check()
            # Its tensors may have been refilled since it was made of them.
            batch.check_tensors()
            require_fit(batch, self._limits, self._tables[0].device)
            self._side.settle()
            route = self._router.route(batch)
            if route.lane == "host":
                check_tokens(batch, self._tables)
                ticket = self._host_lane.request(batch)
                self._side.watch(ticket)
            elif route.lane == "stream":
                ticket = self._side.request(batch)
            else:
                ticket = unasked(batch)
            self._lanes_taken[f"{route.lane}: {route.reason}"] += 1
            self._open_tickets.append(ticket)
            return ticket

    def wait(
        self,
        ticket: Ticket,
        *,
        layer: int = 0,
        out: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Returns the rows of one layer of a ticket, when they are there.

        The slot is released right behind the last layer's rows. Each layer is awaited once.

        Args:
            ticket: what `request` returned.
            layer: index of the table among the connector's.
            out: result buffer as for `Table.embed`.
            dtype: as for `Table.embed`.

        Returns:
            [T, num_heads * row_dim] (uint8: encoded) on the table's device; `out` if given.
            Padding has zero rows.

        Raises:
            RowFetchError: the rows could not be had; the result buffer holds NaN. On CUDA a
                result turns NaN in stream order, and a later call tells; the ticket that such a
                call is about stays open.
            ArgumentError: the ticket is not this connector's, or the layer was awaited before.
            ClosedError: the connector was closed.
        """
        require_type("ticket", ticket, Ticket)
        layer = require_integer("layer", layer)
        with self._lock:
            self._require_open()
            self._require_awaitable(ticket, layer)
            if error := self._side.take_error(of_tokens=False):
                raise error
            table = self._tables[layer]
            shape, heads = (ticket.num_tokens,), table.spec.num_heads
            result = result_buffer(table.codec, shape, heads, table.device, out, dtype)
            ticket.awaited.add(layer)
            try:
                self._take(ticket, layer, result)
            except RowFetchError:
                self._finish_if_done(ticket)
                raise
            except BaseException:
                # Nothing was waited for.
                ticket.awaited.discard(layer)
                raise
            self._finish_if_done(ticket)
            return result

    def cancel(self, ticket: Ticket) -> None:
        """Gives a ticket up that no layer was awaited for; its slot becomes free.

        On CUDA, a ticket of the stream lane is given up in the order of the current stream.

        Raises:
            ArgumentError: the ticket is not this connector's, or a layer was awaited.
            ClosedError: the connector was closed.
        """
        with self._lock:
            self._require_open()
            if ticket not in self._open_tickets or ticket.awaited:
                raise ArgumentError(f"ticket: expected one under way and not awaited, got {ticket}")
            ticket.is_canceled = True
            try:
                if ticket.lane != "none":
                    self._side.cancel(ticket)
            except BaseException:
                ticket.is_canceled = False
                raise
            self._open_tickets.remove(ticket)
            self._host_lane.finished(ticket)

    def release_outputs(self) -> None:
        """Frees, at the end of a forward, the slots of tickets awaited for some layers only."""
        with self._lock:
            if self._open_tickets:
                self._require_open()
            for ticket in [ticket for ticket in self._open_tickets if ticket.awaited]:
                for layer in set(range(len(self._tables))) - ticket.awaited:
                    self._drop(ticket, layer)
                self._finish_if_done(ticket)

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
            error: GramaryError | None = self._side.take_error()
            if error is None and (why := self._service.why_dead()):
                error = RowFetchError(f"{why}; close this connector and make a new one")
        if error is not None:
            raise error

    def stats(self) -> dict[str, Any]:
        """Returns a snapshot: the service's counters, and which lane batches took and why."""
        with self._lock:
            self._require_open()
            return {
                "lanes": dict(self._lanes_taken),
                "open_tickets": len(self._open_tickets),
                **self._region.counters(),
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
            self._side.trace(on)
            self._service.trace(on)

    def take_spans(self) -> list[Span]:
        """Returns the spans kept since the last call, by begin; on CUDA it waits for the device.

        Their names are `gramary.tracing.SPAN_NAMES`; of a graph's, the last replay's are given.
        """
        with self._lock:
            self._require_open()
            spans = [*self._spans.take(), *self._side.take_spans(), *self._service.take_spans()]
        return sorted(spans, key=lambda span: span.begin_ns)

    def close(self) -> None:
        """Ends the service, drops what is under way and gives the memory back.

        Waits for the device where there is one; graphs that were captured with this connector must
        not be replayed any more.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._open_tickets.clear()
            self._finalizer()

    @property
    def service(self) -> Service:
        """The running row service."""
        return self._service

    def _drop(self, ticket: Ticket, layer: int) -> None:
        """Gives a layer up, or raises and leaves everything as it was."""
        ticket.awaited.add(layer)
        try:
            if ticket.lane != "none":
                self._side.drop(ticket, layer)
        except BaseException:
            ticket.awaited.discard(layer)
            raise

    def _take(self, ticket: Ticket, layer: int, out: torch.Tensor) -> None:
        if ticket.batch is None:
            self._side.take(ticket, layer, out)
        else:
            table = self._tables[layer]
            table.embed(*tensors_for(ticket.batch, table), out=out)

    def _finish_if_done(self, ticket: Ticket) -> None:
        """Closes the books on a ticket without layers left."""
        if len(ticket.awaited) < len(self._tables):
            return
        if ticket.lane != "none":
            self._side.release(ticket)
        self._host_lane.finished(ticket)
        ticket.is_released = True
        self._open_tickets.remove(ticket)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the connector was closed")
        if os.getpid() != self._owner_pid:
            raise ClosedError(
                f"the connector belongs to process {self._owner_pid}, from which this one was "
                "forked: open the table and make the connector here"
            )

    def _require_awaitable(self, ticket: Ticket, layer: int) -> None:
        if ticket not in self._open_tickets:
            raise ArgumentError(f"ticket: expected one under way, got {ticket}")
        if not 0 <= layer < len(self._tables):
            raise ArgumentError(f"layer: expected 0 to {len(self._tables) - 1}, got {layer}")
        if layer in ticket.awaited:
            raise ArgumentError(f"layer: {layer} of this ticket was awaited before")


def shut_down(service: Service, side: Side, region: Region, owner_pid: int) -> None:
    """Ends the service, lets go of everything under way, and gives the memory back.

    In a forked child it does nothing: there are no threads to end, and the memory is the parent's.
    """
    if os.getpid() != owner_pid:
        return
    service.stop()
    side.close()
    region.close()


__all__ = ["Connector"]
