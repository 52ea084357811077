"""What of a connector depends on the table's device, and the side of CPU tables."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch

from gramary.batch import Batch
from gramary.errors import GramaryError
from gramary.offload.giving_up.canceling import free_slot
from gramary.offload.lanes.consumer import HostConsumer
from gramary.offload.lanes.numbering import Quarantine, StreamLane
from gramary.offload.memory.region import Region
from gramary.offload.service.base import Service
from gramary.offload.service.stores import disk_files
from gramary.offload.ticket import Claim
from gramary.ops.hash import row_ids_of
from gramary.settings import Settings
from gramary.table import Table
from gramary.tracing import Span, SpanLog


class Side(abc.ABC):
    """The stream lane's requests, and how any claim becomes rows.

    Order of calls: construct → `start` → any others → `close`. A claim's life here: `request` (or
    `watch`, for one of the host lane) → `take` for some layers → `give_back`, which gives up the
    others. Whatever breaks a call off, the next one of the same claim goes on from there. Calls
    come from one thread.

    Attributes:
        quarantine: slots that a request given up still holds.
    """

    quarantine: Quarantine

    @abc.abstractmethod
    def start(self) -> None:
        """Starts what runs beside the caller, once the side is in the hands of who closes it."""

    @abc.abstractmethod
    def request(self, claim: Claim, batch: Batch) -> None:
        """Requests a batch's rows in the stream lane.

        Raises:
            SlotsBusyError: the lane's last claim was not awaited for every layer.
            FetchTimeoutError: its slot holds a request that was given up and not answered since.
        """

    @abc.abstractmethod
    def watch(self, claim: Claim) -> None:
        """Takes notice of a host-lane claim that was requested."""

    @abc.abstractmethod
    def take(self, claim: Claim, layer: int, out: torch.Tensor) -> None:
        """Writes a layer's rows, decoded, to `out`, once they are there.

        Raises:
            RowFetchError: the rows could not be had and `out` is NaN; on CUDA that is found out
                later, and told by `take_error`.
        """

    @abc.abstractmethod
    def give_back(self, claim: Claim) -> None:
        """Frees, behind everything taken, the slot of a claim; layers not awaited are given up."""

    @abc.abstractmethod
    def can_give_back(self, claim: Claim) -> bool:
        """Returns whether `give_back` fits into the order of the current stream, without a ticket
        whose owner would know."""

    @abc.abstractmethod
    def settle(self) -> None:
        """Frees the slots of canceled tickets whose turn has come."""

    @abc.abstractmethod
    def take_error(self, *, of_tokens: bool = True) -> GramaryError | None:
        """Returns what went wrong behind the caller's back since the last call, or None.

        Args:
            of_tokens: whether wrong tokens are asked for too.
        """

    @abc.abstractmethod
    def trace(self, on: bool) -> None:
        """Starts or ends the keeping of spans that the calling thread does not see."""

    @abc.abstractmethod
    def take_spans(self) -> list[Span]:
        """Returns those spans that were kept since the last call."""

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of everything under way; the service has ended, the memory is still there."""


class HostSide(Side):
    """CPU tables: the calling thread writes ids, waits for flags and decodes."""

    def __init__(
        self,
        region: Region,
        service: Service,
        tables: Sequence[Table],
        settings: Settings,
        spans: SpanLog,
    ) -> None:
        self._region = region
        self._spans = spans
        self._tables = tuple(tables)
        self._timeout_s = settings.request_timeout_s
        self.quarantine = Quarantine(region)
        self._lane = StreamLane(region, region.ring.stream_slots[0], self.quarantine, spans)
        self._consumer = HostConsumer(
            region,
            service,
            [table.codec for table in tables],
            [disk_files(table) for table in tables],
            self._timeout_s,
            self.quarantine,
            spans,
        )

    def start(self) -> None:
        """Does nothing: the calling thread does it all."""

    def request(self, claim: Claim, batch: Batch) -> None:
        """Hashes on this thread and rings; see `Side`."""
        with self._spans.span("wait_tokens", "stream", self._lane.next_number):
            specs = [table.spec for table in self._tables]
            ids = [row_ids_of(spec, batch.flat(spec.history_length)) for spec in specs]
        self._lane.request(claim, ids)

    def watch(self, claim: Claim) -> None:
        """Does nothing: `take` looks at the clock itself."""

    def take(self, claim: Claim, layer: int, out: torch.Tensor) -> None:
        """Waits on this thread and decodes; see `Side`."""
        self._consumer.take(claim, layer, out)

    def give_back(self, claim: Claim) -> None:
        """Frees the slot now."""
        with self._spans.span("release", claim.lane, claim.number):
            free_slot(self._region, claim, self._timeout_s)

    def can_give_back(self, claim: Claim) -> bool:  # noqa: ARG002
        """Returns True: there are no streams."""
        return True

    def settle(self) -> None:
        """Does nothing: slots are freed at once."""

    def take_error(self, *, of_tokens: bool = True) -> GramaryError | None:  # noqa: ARG002
        """Returns None: errors are raised where they are met."""
        return None

    def trace(self, on: bool) -> None:
        """Does nothing: the calling thread does it all."""

    def take_spans(self) -> list[Span]:
        """Returns none."""
        return []

    def close(self) -> None:
        """Does nothing: nobody waits."""


__all__ = ["HostSide", "Side"]
