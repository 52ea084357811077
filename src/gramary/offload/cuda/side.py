"""The side of CUDA tables: requests and waits are queued on streams, no host thread waits."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

import torch

from gramary.batch import Batch
from gramary.errors import (
    ArgumentError,
    FetchTimeoutError,
    GramaryError,
    RowFetchError,
    SlotsBusyError,
    UnsupportedError,
)
from gramary.offload.batch_tensors import BatchTensors, tensors_for
from gramary.offload.canceling import CanceledTickets
from gramary.offload.consumer import require_slot
from gramary.offload.cuda.device_spans import DeviceSpans, TimedStreams
from gramary.offload.cuda.request import write_request
from gramary.offload.cuda.slots import DeviceSlot, DeviceSlots
from gramary.offload.cuda.streams import Streams
from gramary.offload.cuda.take import settle, take_rows
from gramary.offload.fetch_error import failed_answer, timed_out
from gramary.offload.lanes import Quarantine
from gramary.offload.region import Region
from gramary.offload.ring import Failure
from gramary.offload.service import Service
from gramary.offload.sides import Side
from gramary.offload.stores import disk_files
from gramary.offload.ticket import Ticket
from gramary.offload.watchdog import Watchdog
from gramary.ops._triton.hash import HashConstants
from gramary.ops._triton.sticky_error import error_of
from gramary.ops.extents import Extents
from gramary.ops.flat_batch import as_in_memory
from gramary.settings import Settings
from gramary.table import Table
from gramary.tiers.device import DeviceTier
from gramary.tracing import Span

# Errors that nobody asked for yet; a worker that stays dead makes one for every replay.
MAX_ERRORS = 64


class CudaSide(Side):
    """Rows for tables on one CUDA device, in the order of its streams, eagerly or captured.

    A stream has a slot of the stream lane for itself, from its first request on. A graph keeps the
    slot of the stream it was captured on: its replays, and other work of that stream, must not
    overlap.

    Args:
        region: the shared memory, registered with CUDA.
        service: the row service.
        tables: the layers' tables, on one device.
        settings: `request_timeout_s` is used.
        streams: the device's streams.
    """

    def __init__(
        self,
        region: Region,
        service: Service,
        tables: Sequence[Table],
        settings: Settings,
        streams: Streams,
    ) -> None:
        self._region = region
        self._service = service
        self._tables = tuple(tables)
        self._device_spans = DeviceSpans(streams, "stream")
        self._streams = TimedStreams(streams, self._device_spans)
        self._timeout_s = settings.request_timeout_s
        self._device = self._tables[0].device
        with streams.on_device():
            self._slots = DeviceSlots(region, self._device)
            self._constants = [HashConstants.of(table.spec, self._device) for table in tables]
        self._extents = [own_extent(table) for table in tables]
        self._files = [disk_files(table) for table in tables]
        # Slots of the stream lane by stream, and the ticket that each has under way.
        self._given: dict[int, DeviceSlot] = {}
        self._under_way: dict[DeviceSlot, Ticket] = {}
        self._turn = threading.Lock()
        self._errors: deque[RowFetchError] = deque(maxlen=MAX_ERRORS)
        self.quarantine = Quarantine(region)
        self._canceled = CanceledTickets(region, self._timeout_s, lambda _ticket: None)
        self.watchdog = Watchdog(
            region, service, self._timeout_s, self.quarantine, self._canceled, self._keep_error
        )
        self.watchdog.start()

    def request(self, batch: Batch) -> Ticket:
        """Queues a request on the current stream; see `Side`.

        Raises:
            UnsupportedError: host tensors, while the stream is captured.
        """
        with self._streams.on_device():
            is_capturing = self._streams.is_capturing()
            slot = self._slot_of_stream()
            if slot in self._under_way:
                raise SlotsBusyError(
                    f"the stream's last ticket ({self._under_way[slot]}) was not awaited for every "
                    "layer: wait for it, cancel it, or call release_outputs()"
                )
            if not is_capturing:
                self.quarantine.require_free(slot.places)
            # In stream order: the batch's tokens are there when the kernel begins.
            asked_ns, begin = time.monotonic_ns(), self._device_spans.mark()
            self._device_spans.add("wait_tokens", asked_ns, begin, "stream", 0)
            with self._device_spans.span("write_inputs", "stream"):
                self._write_request(slot, batch)
        ticket = Ticket(
            "stream", 0, batch.num_tokens, batch.num_requests, slot.places,
            is_captured=is_capturing,
        )  # fmt: skip
        self._under_way[slot] = ticket
        return ticket

    def _write_request(self, slot: DeviceSlot, batch: Batch) -> None:
        """Queues the kernels that write a request's ids, and behind them its number."""
        last = len(self._tables) - 1
        for layer, table in enumerate(self._tables):
            extents = self._extents[layer]
            write_request(
                slot,
                layer,
                self._constants[layer],
                self._on_device(tensors_for(batch, table)),
                device_rows=(extents.device_first, extents.device_end),
                is_last_layer=layer == last,
            )

    def trace(self, on: bool) -> None:
        """Starts or ends the keeping of the streams' spans; starting waits for the device."""
        self._device_spans.switch(on)

    def take_spans(self) -> list[Span]:
        """Returns the streams' spans; waits for the device."""
        return self._device_spans.take()

    def watch(self, ticket: Ticket) -> None:
        """Lets the watchdog look at a host-lane ticket."""
        self.watchdog.watch(ticket)

    def take(self, ticket: Ticket, layer: int, out: torch.Tensor) -> None:
        """Queues the wait and the rows on the current stream; see `Side`."""
        table = self._tables[layer]
        releases = len(ticket.awaited) == len(self._tables)
        taking = self._streams.taking(ticket.lane, ticket.number, releases=releases)
        with self._streams.on_device(), taking:
            slot = self._slot_in_turn(ticket)
            take_rows(
                slot, layer, ticket.number, table.codec, self._extents[layer], out, self._streams,
                releases=releases,
            )  # fmt: skip
            ticket.is_released = releases

    def drop(self, ticket: Ticket, layer: int) -> None:
        """Queues the wait and lowers the flag, whatever the answer is."""
        with self._streams.on_device():
            slot = self._slot_in_turn(ticket)
            self._streams.wait(slot.ready_address(layer), 1)
            releases = len(ticket.awaited) == len(self._tables)
            settle(slot, layer, ticket.number, releases=releases)
            ticket.is_released = releases

    def release(self, ticket: Ticket) -> None:
        """Lets the stream's next request come; the slot was released behind the last layer."""
        assert ticket.is_released, ticket
        self._under_way.pop(self._slots.at(require_slot(ticket)), None)

    def cancel(self, ticket: Ticket) -> None:
        """Drops a stream's ticket in its order; a host-lane ticket is settled by the host."""
        if ticket.lane == "host":
            self._canceled.add(ticket)
            return
        with self._streams.on_device():
            self._require_same_graph(ticket)
        for layer in range(len(self._tables)):
            ticket.awaited.add(layer)
            self.drop(ticket, layer)
        self.release(ticket)

    def settle(self) -> None:
        """Frees slots of canceled host-lane tickets."""
        self._canceled.settle()

    def take_error(self, *, of_tokens: bool = True) -> GramaryError | None:
        """Returns what the watchdog or a kernel found since the last call; reads host memory only.

        Errors of several requests come as one.
        """
        errors: list[GramaryError] = []
        with self._turn:
            while self._errors:
                errors.append(self._errors.popleft())
        errors += self._failures()
        if of_tokens:
            errors += self._token_errors()
        if len(errors) < 2:
            return errors[0] if errors else None
        first, others = errors[0], "; ".join(str(error) for error in errors[1:4])
        first.args = (f"{first} (and {len(errors) - 1} more: {others})",)
        return first

    def close(self) -> None:
        """Lets every stream go, waits until none reads the shared memory, ends the watchdog."""
        self.watchdog.give_all_up("the connector was closed")
        with self._streams.on_device():
            self._streams.synchronize()
        self.watchdog.stop()

    def _slot_of_stream(self) -> DeviceSlot:
        key = self._streams.key()
        if key not in self._given:
            if len(self._given) == len(self._slots.stream):
                raise SlotsBusyError(
                    f"{len(self._given)} streams have the slots of the stream lane: request on one "
                    "of them"
                )
            self._given[key] = self._slots.stream[len(self._given)]
        return self._given[key]

    def _on_device(self, tensors: BatchTensors) -> BatchTensors:
        tokens, starts, history = tensors
        if tokens.device != self._device and self._streams.is_capturing():
            raise UnsupportedError(
                f"batch: expected tensors on {self._device} while a CUDA graph is captured (its "
                f"replays would not see host tensors change), got {tokens.device}"
            )
        return (
            as_in_memory(tokens.to(self._device)),
            as_in_memory(starts.to(self._device)),
            None if history is None else as_in_memory(history.to(self._device)),
        )

    def _slot_in_turn(self, ticket: Ticket) -> DeviceSlot:
        """Returns a ticket's slot, behind the release of its slot's request before."""
        self._require_same_graph(ticket)
        slot = self._slots.at(require_slot(ticket))
        before = ticket.number - len(self._slots.host)
        if ticket.lane == "host" and before > 0:
            # The flag may still be that of the slot's last request: canceled, or on another
            # stream. It is lowered before that one is released.
            self._streams.wait(slot.released_address, before & 0xFFFFFFFF)
        return slot

    def _require_same_graph(self, ticket: Ticket) -> None:
        if ticket.is_captured != self._streams.is_capturing():
            raise ArgumentError(
                f"ticket: expected {ticket} to be requested and awaited in one CUDA graph, or both "
                "outside of any"
            )

    def _keep_error(self, error: FetchTimeoutError) -> None:
        with self._turn:
            self._errors.append(error)

    def _failures(self) -> list[RowFetchError]:
        """Returns what kernels wrote down of failed answers, and forgets it."""
        errors: list[RowFetchError] = []
        for index, record in enumerate(self._slots.failures.tolist()):
            if not record[0]:
                continue
            _, number, layer, answered, failure, errno, file, offset = record
            slot = (*self._slots.host, *self._slots.stream)[index]
            name = "stream lane" if slot.is_stream else "host lane"
            name = f"request {number} of the {name}"
            if failure != Failure.NONE and answered == number:
                answer = (number, Failure(failure), errno, file, offset)
                errors.append(failed_answer(name, layer, answer, self._files[layer]))
            elif not self.watchdog.was_given_up(slot.places, number):
                errors.append(timed_out(name, layer, self._timeout_s, "no answer came"))
            self._slots.failures[index].zero_()
        return errors

    def _token_errors(self) -> list[GramaryError]:
        """Returns what kernels wrote down of wrong tokens, and forgets it."""
        errors: list[GramaryError] = []
        if not self._slots.token_errors[..., 0].any():
            return errors
        for slot_errors in self._slots.token_errors:
            for table, error in zip(self._tables, slot_errors, strict=True):
                spec = table.spec
                found = error_of(error, vocab_size=spec.vocab_size, num_rows=spec.num_rows)
                if found is not None:
                    errors.append(found)  # type: ignore[arg-type]
        self._slots.token_errors.zero_()
        return errors


def own_extent(table: Table) -> Extents:
    """Returns the rows of a table that lie in its device's own memory."""
    for tier in table.tiers:
        if isinstance(tier, DeviceTier):
            return Extents(
                table.spec.num_rows,
                device_rows=tier.rows,
                device_first=tier.first_row,
                device_end=tier.end_row,
            )
    return Extents(table.spec.num_rows)


__all__ = ["CudaSide"]
