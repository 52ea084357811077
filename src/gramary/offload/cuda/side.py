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
from gramary.native.ring import Failure, failure_of
from gramary.offload.cuda.device_spans import DeviceSpans, TimedStreams
from gramary.offload.cuda.request import write_request
from gramary.offload.cuda.slots import DeviceSlot, DeviceSlots
from gramary.offload.cuda.streams import Streams
from gramary.offload.cuda.take import settle, take_rows
from gramary.offload.giving_up.canceling import CanceledClaims, free_slot
from gramary.offload.giving_up.fetch_error import failed_answer, timed_out
from gramary.offload.giving_up.watchdog import Watchdog
from gramary.offload.lanes.batch_tensors import BatchTensors, tensors_for
from gramary.offload.lanes.consumer import require_slot, require_states
from gramary.offload.lanes.numbering import Quarantine, stream_is_busy
from gramary.offload.lanes.sides import Side
from gramary.offload.memory.region import Region
from gramary.offload.service.base import Service
from gramary.offload.service.stores import disk_files
from gramary.offload.ticket import Claim
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
        # Slots of the stream lane by stream, and the newest claim on each; one that is released
        # holds it no more.
        self._given: dict[int, DeviceSlot] = {}
        self._holders: dict[DeviceSlot, Claim] = {}
        self._turn = threading.Lock()
        self._errors: deque[RowFetchError] = deque(maxlen=MAX_ERRORS)
        self.quarantine = Quarantine(region)
        self._canceled = CanceledClaims(region, self._timeout_s)
        self.watchdog = Watchdog(
            region, service, self._timeout_s, self.quarantine, self._canceled, self._keep_error
        )

    def start(self) -> None:
        """Starts the watchdog."""
        self.watchdog.start()

    def request(self, claim: Claim, batch: Batch) -> None:
        """Queues a request on the current stream; see `Side`.

        Raises:
            UnsupportedError: host tensors, while the stream is captured.
        """
        with self._streams.on_device():
            is_capturing = self._streams.is_capturing()
            slot = self._slot_of_stream()
            holder = self._holders.get(slot)
            if holder is not None and not holder.is_released:
                raise SlotsBusyError(why_busy(holder))
            if not is_capturing:
                self.quarantine.require_free(slot.places)
            asked_ns = time.monotonic_ns()
            tensors = [self._on_device(tensors_for(batch, table)) for table in self._tables]
            # Before it has a slot: one with a slot that is not being queued was asked for.
            claim.is_being_queued, claim.is_captured = True, is_capturing
            claim.slot = claim.states = slot.places
            self._holders[slot] = claim
            # In stream order: the batch's tokens are there when the kernel begins.
            begin = self._device_spans.mark()
            self._device_spans.add("wait_tokens", asked_ns, begin, "stream", 0)
            with self._device_spans.span("write_inputs", "stream"):
                self._write_request(slot, tensors)
            claim.is_being_queued = False

    def _write_request(self, slot: DeviceSlot, tensors: list[BatchTensors]) -> None:
        """Queues the kernels that write a request's ids, and behind them its number."""
        last = len(self._tables) - 1
        for layer, extents in enumerate(self._extents):
            write_request(
                slot,
                layer,
                self._constants[layer],
                tensors[layer],
                device_rows=(extents.device_first, extents.device_end),
                is_last_layer=layer == last,
            )

    def trace(self, on: bool) -> None:
        """Starts or ends the keeping of the streams' spans; starting waits for the device."""
        self._device_spans.switch(on)

    def take_spans(self) -> list[Span]:
        """Returns the streams' spans; waits for the device."""
        return self._device_spans.take()

    def watch(self, claim: Claim) -> None:
        """Lets the watchdog look at a host-lane claim."""
        self.watchdog.watch(claim)

    def take(self, claim: Claim, layer: int, out: torch.Tensor) -> None:
        """Queues the wait and the rows on the current stream; see `Side`."""
        table = self._tables[layer]
        releases = len(claim.awaited | {layer}) == len(self._tables)
        with self._streams.on_device():
            self._require_same_graph(claim)
            if claim.is_torn:
                self._mend(claim)
            claim.is_being_queued = True
            with self._streams.taking(claim.lane, claim.number, releases=releases):
                slot = self._slot_in_turn(claim)
                take_rows(
                    slot, layer, claim.number, table.codec, self._extents[layer], out,
                    self._streams, releases=releases,
                )  # fmt: skip
            claim.taken.add(layer)
            claim.is_being_queued = False

    def give_back(self, claim: Claim) -> None:
        """Frees a slot in the order of the current stream; one that no layer was awaited for, and
        one whose call was broken off, by the host.

        Raises:
            ArgumentError: the claim was requested in a graph that is not the one being captured.
        """
        left = [layer for layer in range(len(self._tables)) if layer not in claim.awaited]
        if not left and not claim.is_torn:
            # Released behind the last layer's rows.
            return
        with self._streams.on_device():
            if claim.is_captured and claim.is_lost and not self._streams.is_capturing():
                # A graph that asks and never waits: it is of no use, and nothing of it runs now.
                return
            if claim.is_torn:
                self._free_torn(claim)
            elif claim.lane == "host" and not claim.awaited:
                claim.is_canceled = True
                self._canceled.add(claim)
            elif left:
                self._require_same_graph(claim)
                # For good: what breaks off from here on cannot be done twice.
                claim.is_being_queued = True
                for layer in left:
                    slot = self._slot_in_turn(claim)
                    self._streams.wait(slot.ready_address(layer), 1)
                    settle(slot, layer, claim.number, releases=layer == left[-1])

    def can_give_back(self, claim: Claim) -> bool:
        """Returns whether the current stream is the one that a claim's slot belongs to."""
        with self._streams.on_device():
            if claim.slot is None or claim.is_captured != self._streams.is_capturing():
                return claim.slot is None or claim.is_captured
            if claim.lane == "host":
                return True
            return self._given.get(self._streams.key()) is self._slots.at(claim.slot)

    def _mend(self, claim: Claim) -> None:
        """Makes the layers that are left ready to be taken, behind a call that was broken off."""
        number = self._quiet_number(claim)
        for layer in range(len(self._tables)):
            slot = require_slot(claim)
            is_pending = self._region.is_requested(require_states(claim), number, layer)
            # The rows stay where they are until the slot's next request, which is still to come.
            if layer not in claim.awaited and not is_pending:
                self._region.raise_ready(slot, layer, number)
        claim.taken &= claim.awaited
        claim.is_being_queued = False

    def _free_torn(self, claim: Claim) -> None:
        """Frees the slot of a claim that a device may have any part of the work for."""
        if claim.is_captured:
            # The graph did not come to be: nothing of it ever runs.
            return
        claim.number = self._quiet_number(claim)
        if claim.lane == "host":
            claim.is_canceled = True
            self._canceled.add(claim)
        elif claim.number:
            free_slot(self._region, claim, self._timeout_s)

    def _quiet_number(self, claim: Claim) -> int:
        """Returns a claim's number once the device has done all that it was given.

        Raises:
            SlotsBusyError: a graph is being captured, so that nobody may wait for the device.
        """
        if self._streams.is_capturing():
            raise SlotsBusyError(
                f"a call about {claim} was broken off: end the capture of the CUDA graph, and "
                "request again"
            )
        self._streams.synchronize()
        if claim.lane == "host":
            self._canceled.settle()
            return claim.number
        # The device counts. One that was never written there is an older request, and released.
        return self._region.slot_number(require_slot(claim))

    def settle(self) -> None:
        """Frees slots of canceled host-lane claims."""
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
        try:
            with self._streams.on_device():
                self._streams.synchronize()
        finally:
            # Whatever the device says: a thread that stays would keep the memory and the service.
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

    def _slot_in_turn(self, claim: Claim) -> DeviceSlot:
        """Returns a claim's slot, behind the release of its slot's request before."""
        slot = self._slots.at(require_slot(claim))
        before = claim.number - len(self._slots.host)
        if claim.lane == "host" and before > 0:
            # The flag may still be that of the slot's last request: canceled, or on another
            # stream. It is lowered before that one is released.
            self._streams.wait(slot.released_address, before & 0xFFFFFFFF)
        return slot

    def _require_same_graph(self, claim: Claim) -> None:
        if claim.is_captured != self._streams.is_capturing():
            raise ArgumentError(
                f"ticket: expected {claim} to be requested and awaited in one CUDA graph, or both "
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
                answer = (number, failure_of(failure), errno, file, offset)
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


def why_busy(holder: Claim) -> str:
    """Returns what stands in the way of a stream's next request, and what to do about it."""
    if holder.is_lost:
        return (
            f"the stream lane's slot is in use by {holder}, whose owner is gone: request once "
            "outside of a CUDA graph, which frees it"
        )
    return stream_is_busy(holder)


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
