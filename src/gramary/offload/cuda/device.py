"""What the lanes of CUDA tables share: slots, streams, the watchdog, and errors found later."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from gramary.errors import FetchTimeoutError, GramaryError, RowFetchError
from gramary.native.ring import Failure, failure_of
from gramary.offload.cuda.device_spans import DeviceSpans, TimedStreams
from gramary.offload.cuda.lane_kernels import load_request_kernels, load_take_kernels
from gramary.offload.cuda.slots import DeviceSlots
from gramary.offload.cuda.streams import Streams
from gramary.offload.giving_up.canceling import CanceledClaims
from gramary.offload.giving_up.fetch_error import failed_answer, timed_out
from gramary.offload.giving_up.quarantine import Quarantine
from gramary.offload.giving_up.watchdog import Watchdog
from gramary.offload.memory.region import Region
from gramary.offload.service.base import Service
from gramary.offload.service.stores import disk_files
from gramary.ops._triton.hash import HashConstants
from gramary.ops._triton.sticky_error import error_of
from gramary.reading.launch_counts import LaunchCounts
from gramary.settings import Settings
from gramary.table import Table

# Errors that were not asked for yet; a worker that stays dead makes one for every replay.
MAX_ERRORS = 64


class CudaDevice:
    """One CUDA device as a connector's lanes use it; no host thread waits for it.

    Order of calls: construct → `start` → any others → `close`.

    Args:
        region: the shared memory, registered with CUDA.
        service: the row service.
        tables: the connector's tables, on the device.
        settings: `request_timeout_s` is used.
        quarantine: told of slots that the watchdog gives up.
        streams: the device's streams.

    Attributes:
        region, tables, quarantine: as above.
        device: the device.
        streams: its streams, timed.
        spans: what its streams did when.
        slots: the region's slots as it sees them.
        constants: hash constants of each table.
        extents: rows of each table in the device's own memory.
        counts: of each table, what launches read of them.
        canceled: claims of the host lane that wait for their turn to be freed.
        watchdog: lets streams go that wait in vain.
        timeout_s: how long an answer may take.
    """

    def __init__(
        self,
        region: Region,
        service: Service,
        tables: Sequence[Table],
        settings: Settings,
        quarantine: Quarantine,
        streams: Streams,
    ) -> None:
        self.region = region
        self.tables = tuple(tables)
        self.quarantine = quarantine
        self.spans = DeviceSpans(streams, "stream")
        self.streams = TimedStreams(streams, self.spans)
        self.timeout_s = settings.request_timeout_s
        self.device = self.tables[0].device
        with streams.on_device():
            self.slots = DeviceSlots(region, self.device)
            self.constants = [HashConstants.of(table.spec, self.device) for table in tables]
        self.extents = [table.residency.device_extent for table in tables]
        self.counts = [LaunchCounts(table.residency) for table in tables]
        self._files = [disk_files(table) for table in tables]
        self._turn = threading.Lock()
        self._errors: deque[RowFetchError] = deque(maxlen=MAX_ERRORS)
        self._num_errors_dropped = 0
        self.canceled = CanceledClaims(region, self.timeout_s)
        self.watchdog = Watchdog(
            region, service, self.timeout_s, quarantine, self.canceled, self._keep_error
        )

    def start(self) -> None:
        """Loads the kernels of the lanes while no stream waits, then starts the watchdog."""
        self._load_kernels()
        self.watchdog.start()

    def take_error(self, *, of_tokens: bool = True) -> GramaryError | None:
        """Returns what the watchdog or a kernel found since the last call; reads host memory only.

        Errors of several requests come as one.

        Args:
            of_tokens: whether wrong tokens are asked for too.
        """
        errors: list[GramaryError] = []
        with self._turn:
            while self._errors:
                errors.append(self._errors.popleft())
            num_dropped, self._num_errors_dropped = self._num_errors_dropped, 0
        errors += self._failures()
        if of_tokens:
            errors += self._token_errors()
        if len(errors) < 2:
            return errors[0] if errors else None
        first, others = errors[0], "; ".join(str(error) for error in errors[1:4])
        num_others = len(errors) - 1 + num_dropped
        first.args = (f"{first} (and {num_others} more: {others})",)
        return first

    def close(self) -> None:
        """Lets every stream go, waits until none reads the shared memory, ends the watchdog.

        The service has ended by then, and the memory is still there.
        """
        self.watchdog.give_all_up("the connector was closed")
        try:
            with self.streams.on_device():
                self.streams.synchronize()
        finally:
            # Whatever the device says: a thread that stays would keep the memory and the service.
            self.watchdog.stop()

    def _load_kernels(self) -> None:
        if not any(table.residency.beyond_device for table in self.tables):
            # The tables' own kernels read them, and nothing waits.
            return
        shape = self.region.ring.shape
        max_rows = [shape.max_tokens * heads for heads in shape.num_heads]
        codecs = [table.codec for table in self.tables]
        with self.streams.on_device():
            load_request_kernels(self.slots, self.constants, self.extents, shape.history_length)
            load_take_kernels(self.slots, codecs, self.extents, max_rows)

    def _keep_error(self, error: FetchTimeoutError) -> None:
        with self._turn:
            self._num_errors_dropped += len(self._errors) == MAX_ERRORS
            self._errors.append(error)

    def _failures(self) -> list[RowFetchError]:
        """Returns what kernels wrote down of failed answers, and forgets it."""
        errors: list[RowFetchError] = []
        for index, record in enumerate(self.slots.failures.tolist()):
            if not record[0]:
                continue
            _, number, table_index, answered, failure, errno, file, offset = record
            slot = (*self.slots.host, *self.slots.stream)[index]
            name = "stream lane" if slot.is_stream else "host lane"
            name = f"request {number} of the {name}"
            if failure != Failure.NONE and answered == number:
                answer = (number, failure_of(failure), errno, file, offset)
                errors.append(failed_answer(name, table_index, answer, self._files[table_index]))
            elif not self.watchdog.was_given_up(slot.places, number):
                errors.append(timed_out(name, table_index, self.timeout_s, "no answer came"))
            self.slots.failures[index].zero_()
        return errors

    def _token_errors(self) -> list[GramaryError]:
        """Returns what kernels wrote down of wrong tokens, and forgets it."""
        errors: list[GramaryError] = []
        if not self.slots.token_errors[..., 0].any():
            return errors
        for slot_errors in self.slots.token_errors:
            for table, error in zip(self.tables, slot_errors, strict=True):
                spec = table.spec
                found = error_of(error, vocab_size=spec.vocab_size, num_rows=spec.num_rows)
                if found is not None:
                    errors.append(found)  # type: ignore[arg-type]
        self.slots.token_errors.zero_()
        return errors


__all__ = ["CudaDevice"]
