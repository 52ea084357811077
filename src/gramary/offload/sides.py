"""What of a connector depends on the table's device, and the side of CPU tables."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch

from gramary.batch import Batch
from gramary.errors import FetchTimeoutError, GramaryError
from gramary.offload.batch_tensors import tensors_for
from gramary.offload.canceling import CanceledTickets, give_up
from gramary.offload.consumer import HostConsumer
from gramary.offload.lanes import Quarantine, StreamLane
from gramary.offload.region import Region
from gramary.offload.service import Service
from gramary.offload.stores import disk_files
from gramary.offload.ticket import Ticket
from gramary.ops.hash import ngram_ids
from gramary.settings import Settings
from gramary.table import Table
from gramary.tracing import Span, SpanLog


class Side(abc.ABC):
    """The stream lane's requests, and how any ticket becomes rows.

    A ticket's life here: `request` (or `watch`, for one of the host lane) → for each layer `take`
    or `drop` → `release`; or `cancel` in place of all layers. Calls come from one thread.

    Attributes:
        quarantine: slots that a request given up still holds.
    """

    quarantine: Quarantine

    @abc.abstractmethod
    def request(self, batch: Batch) -> Ticket:
        """Requests a batch's rows in the stream lane.

        Raises:
            SlotsBusyError: the lane's last ticket was not awaited for every layer.
            FetchTimeoutError: its slot holds a request that was given up and not answered since.
        """

    @abc.abstractmethod
    def watch(self, ticket: Ticket) -> None:
        """Takes notice of a host-lane ticket that was requested."""

    @abc.abstractmethod
    def take(self, ticket: Ticket, layer: int, out: torch.Tensor) -> None:
        """Writes a layer's rows, decoded, to `out`, once they are there.

        Raises:
            RowFetchError: the rows could not be had and `out` is NaN; on CUDA that is found out
                later, and told by `take_error`.
        """

    @abc.abstractmethod
    def drop(self, ticket: Ticket, layer: int) -> None:
        """Gives up a layer of a ticket that other layers were awaited for."""

    @abc.abstractmethod
    def release(self, ticket: Ticket) -> None:
        """Frees, behind everything taken and dropped, the slot of a ticket without layers left."""

    @abc.abstractmethod
    def cancel(self, ticket: Ticket) -> None:
        """Gives up a ticket that no layer was awaited for."""

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
        self._canceled = CanceledTickets(region, self._timeout_s, self._settled)
        self._lane = StreamLane(region, region.ring.stream_slots[0], self.quarantine, spans)
        self._consumer = HostConsumer(
            region,
            service,
            [table.codec for table in tables],
            [disk_files(table) for table in tables],
            self._timeout_s,
            spans,
        )

    def request(self, batch: Batch) -> Ticket:
        """Hashes on this thread and rings; see `Side`."""
        with self._spans.span("wait_tokens", "stream", self._lane.next_number):
            ids = [ngram_ids(table.spec, *tensors_for(batch, table)) for table in self._tables]
        return self._lane.request(batch, ids)

    def watch(self, ticket: Ticket) -> None:
        """Does nothing: `take` looks at the clock itself."""

    def take(self, ticket: Ticket, layer: int, out: torch.Tensor) -> None:
        """Waits on this thread and decodes; see `Side`."""
        try:
            self._consumer.take(ticket, layer, out)
        except FetchTimeoutError:
            if ticket.slot is not None:
                self.quarantine.add(ticket.slot, ticket.number)
            raise

    def drop(self, ticket: Ticket, layer: int) -> None:
        """Abandons the layer, or lowers its flag."""
        give_up(self._region, ticket, layer, self._timeout_s)

    def release(self, ticket: Ticket) -> None:
        """Frees the slot now."""
        self._consumer.release(ticket)
        self._settled(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Frees the slot as soon as it is this ticket's turn."""
        self._canceled.add(ticket)

    def settle(self) -> None:
        """Frees slots of canceled tickets."""
        self._canceled.settle()

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

    def _settled(self, ticket: Ticket) -> None:
        if ticket.lane == "stream":
            self._lane.released()


__all__ = ["HostSide", "Side"]
