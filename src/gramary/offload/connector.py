"""The engine's side: request a batch's rows early, wait for them where the layer needs them.

    ticket = connector.request(batch)       # at scheduling time, or before the forward's layers
    ...                                     # the forward before runs meanwhile
    rows = connector.wait(ticket)           # [T, heads * row_dim], where the PLE layer stands

A prompt-only batch takes the host lane: its rows are fetched while earlier forwards still run.
Every other batch takes the stream lane, in the order of the device's own work.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import torch

from gramary.batch import Batch
from gramary.errors import (
    ArgumentError,
    ClosedError,
    FetchTimeoutError,
    RowFetchError,
    TokenError,
)
from gramary.offload.consumer import HostConsumer, state_places
from gramary.offload.lanes import HostLane, Quarantine, StreamLane
from gramary.offload.process import ProcessService
from gramary.offload.region import Region
from gramary.offload.ring import RingShape
from gramary.offload.service import Service, ThreadService
from gramary.offload.stores import disk_files, store_arguments
from gramary.offload.ticket import Ticket
from gramary.ops.hash import ngram_ids
from gramary.reading.arguments import result_buffer
from gramary.settings import Settings
from gramary.table import Table

# Host-lane batches whose inputs are kept at once, for each slot.
INPUTS_PER_SLOT = 8


class Connector:
    """Fetches rows of one or several tables for the batches of an engine.

    Calls come from one thread, the engine's. The tables must stay open until `close`.

    Args:
        tables: the PLE layers' tables, in the layers' order; one request fetches for all.
        max_tokens: most tokens of a batch, padding included.
        num_slots: results of the host lane that may be under way at once.
        worker: where the service runs: "thread" (in this process) or "process" (its own).
        prefill_early_request: False sends prompt-only batches down the stream lane too.
        settings: None takes them from the environment; `poll`, `num_threads`,
            `request_timeout_s` and `force_doorbell` are used.

    Raises:
        ArgumentError: an argument is out of its range.
        RowFetchError: the worker process does not come up.
    """

    def __init__(
        self,
        tables: Table | Sequence[Table],
        *,
        max_tokens: int,
        num_slots: int = 2,
        worker: Literal["thread", "process"] = "thread",
        prefill_early_request: bool = True,
        settings: Settings | None = None,
    ) -> None:
        self._tables = (tables,) if isinstance(tables, Table) else tuple(tables)
        if worker not in ("thread", "process"):
            raise ArgumentError(f"worker: expected 'thread' or 'process', got {worker!r}")
        self._settings = settings or Settings.from_env()
        self._early = prefill_early_request
        self._region = Region(ring_shape(self._tables, max_tokens, num_slots))
        try:
            self._service = start_service(worker, self._region, self._tables, self._settings)
        except BaseException:
            self._region.close()
            raise
        self._quarantine = Quarantine(self._region)
        self._host_lane = HostLane(self._region, self._quarantine)
        stream_slot = self._region.ring.stream_slots[0]
        self._stream_lane = StreamLane(self._region, stream_slot, self._quarantine)
        self._consumer = HostConsumer(
            self._region,
            self._service,
            [table.codec for table in self._tables],
            [disk_files(table) for table in self._tables],
            self._settings.request_timeout_s,
        )
        self._open_tickets: list[Ticket] = []
        self._canceled: list[Ticket] = []
        self._lanes_taken: Counter[str] = Counter()
        self._error: RowFetchError | None = None
        self._lock = threading.RLock()
        self._is_closed = False

    def request(self, batch: Batch) -> Ticket:
        """Asks for the rows of a batch and returns at once; host tensors are copied.

        Returns:
            The ticket to wait for, or to `cancel`; owned by the caller.

        Raises:
            SlotsBusyError: too many tickets were not awaited.
            RowFetchError: an earlier request failed on the way, or the lane is quarantined.
            TokenError: a host token lies outside the vocabulary.
            ArgumentError: the batch has more tokens than `max_tokens`, or is on another device.
            ClosedError: the connector was closed.
        """
        with self._lock:
            self.check()
            self._require_fit(batch)
            self._settle_canceled()
            reason = batch.why_not_prompt_only()
            if reason is None and not self._early:
                reason = "prefill_early_request is off"
            if reason is None:
                check_tokens(batch, self._tables)
                ticket = self._host_lane.request(batch)
            else:
                ticket = self._stream_lane.request(batch, self._hash(batch))
            self._lanes_taken[f"stream: {reason}" if reason else "host: prompt-only"] += 1
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
            RowFetchError: the rows could not be had; the result buffer holds NaN.
            ArgumentError: the ticket is not this connector's, or the layer was awaited before.
            ClosedError: the connector was closed.
        """
        with self._lock:
            self._require_open()
            self._require_awaitable(ticket, layer)
            table = self._tables[layer]
            shape, heads = (ticket.num_tokens,), table.spec.num_heads
            result = result_buffer(table.codec, shape, heads, table.device, out, dtype)
            if not ticket.awaited and ticket.lane == "host":
                self._host_lane.awaited()
            ticket.awaited.add(layer)
            try:
                self._consumer.take(ticket, layer, result)
            except FetchTimeoutError:
                self._quarantine.add(ticket)
                raise
            finally:
                if len(ticket.awaited) == len(self._tables):
                    self._release(ticket)
            return result

    def cancel(self, ticket: Ticket) -> None:
        """Gives a ticket up that no layer was awaited for; its slot becomes free.

        Raises:
            ArgumentError: the ticket is not this connector's, or a layer was awaited.
        """
        with self._lock:
            if ticket not in self._open_tickets or ticket.awaited:
                raise ArgumentError(f"ticket: expected one under way and not awaited, got {ticket}")
            ticket.is_canceled = True
            self._open_tickets.remove(ticket)
            self._canceled.append(ticket)
            if ticket.lane == "host":
                self._host_lane.awaited()
            self._settle_canceled()

    def release_outputs(self) -> None:
        """Frees, at the end of a forward, the slots of tickets awaited for some layers only."""
        with self._lock:
            for ticket in [ticket for ticket in self._open_tickets if ticket.awaited]:
                for layer in set(range(len(self._tables))) - ticket.awaited:
                    self._give_up(ticket, layer)
                self._release(ticket)

    def check(self) -> None:
        """Raises what went wrong with an earlier request and was not told yet, once.

        Raises:
            RowFetchError: rows could not be had, or the worker died.
            ClosedError: the connector was closed.
        """
        self._require_open()
        error, self._error = self._error, None
        if error is None and (why := self._service.why_dead()):
            error = RowFetchError(f"{why}; close this connector and make a new one")
        if error is not None:
            raise error

    def stats(self) -> dict[str, Any]:
        """Returns a snapshot: the service's counters, and which lane batches took and why."""
        self._require_open()
        return {
            "lanes": dict(self._lanes_taken),
            "open_tickets": len(self._open_tickets),
            **self._region.counters(),
        }

    def close(self) -> None:
        """Ends the service, drops what is under way and gives the memory back."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._service.stop()
            self._open_tickets.clear()
            self._canceled.clear()
            self._region.close()

    @property
    def service(self) -> Service:
        """The running row service."""
        return self._service

    def __enter__(self) -> Connector:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _hash(self, batch: Batch) -> list[torch.Tensor]:
        tokens, starts, history = batch.token_ids, batch.query_start_loc, batch.history
        return [
            ngram_ids(table.spec, tokens, starts, narrow(history, table)) for table in self._tables
        ]

    def _release(self, ticket: Ticket) -> None:
        self._consumer.release(ticket)
        ticket.is_released = True
        self._open_tickets.remove(ticket)
        if ticket.lane == "stream":
            self._stream_lane.released()

    def _give_up(self, ticket: Ticket, layer: int) -> None:
        """Abandons a layer nobody waits for, or lowers the flag of its answer."""
        slot = ticket.slot
        assert slot is not None, ticket
        places = state_places(self._region, ticket)
        if not self._region.abandon(places, ticket.number, layer):
            self._region.wait_ready(slot, layer, self._settings.request_timeout_s)
            self._region.clear_ready(slot, layer)

    def _settle_canceled(self) -> None:
        """Releases canceled tickets whose slot's previous request was released."""
        for ticket in list(self._canceled):
            slot = ticket.slot
            assert slot is not None, ticket
            before = ticket.number - len(self._region.ring.host_slots)
            if ticket.lane == "host" and self._region.released(slot) < before:
                continue
            for layer in range(len(self._tables)):
                self._give_up(ticket, layer)
            self._region.release(slot, ticket.number)
            self._canceled.remove(ticket)
            if ticket.lane == "stream":
                self._stream_lane.released()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the connector was closed")

    def _require_fit(self, batch: Batch) -> None:
        shape = self._region.ring.shape
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

    def _require_awaitable(self, ticket: Ticket, layer: int) -> None:
        if ticket not in self._open_tickets:
            raise ArgumentError(f"ticket: expected one under way, got {ticket}")
        if not 0 <= layer < len(self._tables):
            raise ArgumentError(f"layer: expected 0 to {len(self._tables) - 1}, got {layer}")
        if layer in ticket.awaited:
            raise ArgumentError(f"layer: {layer} of this ticket was awaited before")


def ring_shape(tables: Sequence[Table], max_tokens: int, num_slots: int) -> RingShape:
    """Returns the sizes of the memory that a connector of these tables shares."""
    if not tables:
        raise ArgumentError("tables: expected at least one")
    return RingShape(
        max_tokens=max_tokens,
        max_requests=max_tokens,
        history_length=max(table.spec.history_length for table in tables),
        num_heads=tuple(table.spec.num_heads for table in tables),
        row_bytes=tuple(table.codec.row_bytes for table in tables),
        num_host_slots=num_slots,
        num_stream_slots=1,
        num_inputs=num_slots * INPUTS_PER_SLOT,
    )


def start_service(
    kind: str, region: Region, tables: Sequence[Table], settings: Settings
) -> Service:
    """Returns a running service for the tables."""
    if kind == "process":
        return ProcessService(region, tables, settings)
    return ThreadService(region, tuple(store_arguments(table) for table in tables), settings)


def narrow(history: torch.Tensor | None, table: Table) -> torch.Tensor | None:
    """Returns the newest columns of the widest layer's history that a table's hash needs."""
    return None if history is None else history[:, history.shape[1] - table.spec.history_length :]


def check_tokens(batch: Batch, tables: Sequence[Table]) -> None:
    """Raises TokenError for the first token outside the smallest vocabulary."""
    vocab_size = min(table.spec.vocab_size for table in tables)
    for name, tokens in (("token_ids", batch.token_ids), ("history", batch.history)):
        if tokens is None or not tokens.numel():
            continue
        low, high = torch.aminmax(tokens)
        if low >= 0 and high < vocab_size:
            continue
        flat = tokens.reshape(-1)
        index = int(((flat < 0) | (flat >= vocab_size)).to(torch.uint8).argmax())
        raise TokenError(f"{name}[{index}]: expected 0 to {vocab_size - 1}, got {int(flat[index])}")


__all__ = ["Connector"]
