"""How a ticket becomes rows: on the CPU, by waiting for the service's flag."""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence

import torch

from gramary.codecs import Codec
from gramary.errors import RowFetchError
from gramary.native.rows import decode
from gramary.offload.fetch_error import failed_answer, timed_out
from gramary.offload.region import Region
from gramary.offload.ring import Failure, InputPlaces, SlotPlaces
from gramary.offload.service import Service
from gramary.offload.ticket import Ticket
from gramary.tracing import SpanLog

# How often a waiting consumer asks whether its worker still lives.
LIVENESS_S = 0.25


class Consumer(abc.ABC):
    """Takes rows out of slots, into results on the table's device."""

    @abc.abstractmethod
    def take(self, ticket: Ticket, layer: int, out: torch.Tensor) -> None:
        """Waits for a layer's rows and writes them, decoded, to `out`.

        Args:
            ticket: a ticket of this connector with a slot.
            layer: which layer's rows.
            out: [T, heads * width] in an output dtype, contiguous, on the table's device.

        Raises:
            RowFetchError: the rows could not be had; `out` is NaN then.
        """

    @abc.abstractmethod
    def release(self, ticket: Ticket) -> None:
        """Says, behind everything taken so far, that the ticket's slot may be overwritten."""


class HostConsumer(Consumer):
    """Takes rows into CPU tensors; waits on the calling thread.

    Args:
        region: the shared memory.
        service: the row service, asked for its life while waiting.
        codecs: encoding of each layer's rows.
        files: paths of each layer's disk rows, for messages.
        timeout_s: how long an answer may take.
        spans: told what the calling thread did when.
    """

    def __init__(
        self,
        region: Region,
        service: Service,
        codecs: Sequence[Codec],
        files: Sequence[Sequence[str]],
        timeout_s: float,
        spans: SpanLog,
    ) -> None:
        self._region = region
        self._service = service
        self._codecs = tuple(codecs)
        self._files = tuple(files)
        self._timeout_s = timeout_s
        self._spans = spans

    def take(self, ticket: Ticket, layer: int, out: torch.Tensor) -> None:
        """Waits for the flag, checks the answer, decodes and lowers the flag; see `Consumer`."""
        slot = require_slot(ticket)
        with self._spans.span("wait_rows", ticket.lane, ticket.number):
            error = self._await(ticket, slot, layer)
        if error is None:
            error = self._copy(ticket, slot, layer, out)
            # Last: what was interrupted before can be awaited once more.
            self._region.clear_ready(slot, layer)
        if error is not None:
            poison(out)
            raise error

    def _copy(
        self, ticket: Ticket, slot: SlotPlaces, layer: int, out: torch.Tensor
    ) -> RowFetchError | None:
        """Decodes an answer's rows, or returns why it has none."""
        answer = self._region.answer(slot, layer)
        if answer[0] != ticket.number or answer[1] is not Failure.NONE:
            return failed_answer(ticket, layer, answer, self._files[layer])
        rows = self._region.rows(slot, layer, ticket.num_tokens)
        codec = self._codecs[layer]
        flat = out.view(rows.shape[0], codec.output_width(out.dtype))
        with self._spans.span("copy_rows", ticket.lane, ticket.number):
            decode(codec.name, codec.row_dim, codec.scale, rows, flat)
        return None

    def release(self, ticket: Ticket) -> None:
        """Frees the ticket's slot now: what was taken is copied."""
        with self._spans.span("release", ticket.lane, ticket.number):
            self._region.release(require_slot(ticket), ticket.number)

    def _await(self, ticket: Ticket, slot: SlotPlaces, layer: int) -> RowFetchError | None:
        deadline = ticket.requested_at + self._timeout_s
        why_dead = None
        while True:
            left = deadline - time.monotonic()
            if self._region.wait_ready(slot, layer, max(0.0, min(left, LIVENESS_S))):
                return None
            why_dead = self._service.why_dead()
            if why_dead or left <= 0:
                break
        if self._region.abandon(state_places(self._region, ticket), ticket.number, layer):
            return timed_out(ticket, layer, self._timeout_s, why_dead)
        # The answer was published just now: its flag follows at once.
        self._region.wait_ready(slot, layer, LIVENESS_S)
        return None


def state_places(region: Region, ticket: Ticket) -> SlotPlaces | InputPlaces:
    """Returns where a ticket's state words lie: with its inputs, or in its slot."""
    return region.ring.input(ticket.number) if ticket.lane == "host" else require_slot(ticket)


def require_slot(ticket: Ticket) -> SlotPlaces:
    """Returns the slot of a ticket that has one; callers see to that."""
    assert ticket.slot is not None, ticket
    return ticket.slot


def poison(out: torch.Tensor) -> None:
    """Fills a result that has no rows with NaN (encoded: with the codes 0xFF)."""
    out.fill_(0xFF if out.dtype == torch.uint8 else float("nan"))


__all__ = ["Consumer", "HostConsumer", "poison", "require_slot", "state_places"]
