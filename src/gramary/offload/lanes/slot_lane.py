"""Rows of CPU tables that arrive in a slot of shared memory: the calling thread waits for them."""

from __future__ import annotations

import dataclasses
import time

import torch

from gramary.errors import RowFetchError
from gramary.native.ring import SlotPlaces
from gramary.native.rows import row_codec
from gramary.offload.giving_up.canceling import free_slot
from gramary.offload.giving_up.fetch_error import failed_answer, no_answer, timed_out
from gramary.offload.giving_up.quarantine import Quarantine
from gramary.offload.lanes.lane import Claim, Lane
from gramary.offload.memory.region import Region
from gramary.offload.service.base import Service
from gramary.offload.service.stores import disk_files
from gramary.table import Table
from gramary.tracing import NOTHING, SpanLog

# How often a waiting thread asks whether its worker still lives.
LIVENESS_S = 0.25


@dataclasses.dataclass(frozen=True)
class SlotParts:
    """What the lanes with slots share.

    Attributes:
        region: the shared memory.
        service: the row service, asked for its life while waiting.
        tables: the connector's tables.
        timeout_s: how long an answer may take.
        quarantine: told of slots whose request is given up.
        spans: told what the calling thread did when.
    """

    region: Region
    service: Service
    tables: tuple[Table, ...]
    timeout_s: float
    quarantine: Quarantine
    spans: SpanLog


class SlotLane(Lane):
    """Takes rows into CPU tensors; how they are requested is a subclass's.

    Args:
        parts: what the lanes with slots share.
    """

    def __init__(self, parts: SlotParts) -> None:
        self._region = parts.region
        self._service = parts.service
        self._timeout_s = parts.timeout_s
        self._quarantine = parts.quarantine
        self._spans = parts.spans
        codecs = [table.codec for table in parts.tables]
        self._codecs = [row_codec(codec.name, codec.row_dim, codec.scale) for codec in codecs]
        self._files = [disk_files(table) for table in parts.tables]

    def take(self, claim: Claim, table_index: int, out: torch.Tensor) -> None:
        """Waits on this thread and decodes; see `Lane`.

        The shared memory stays as it is, so that a call that is broken off can be made again until
        the slot is freed.
        """
        slot, spans = claim.slot, self._spans
        assert slot is not None, claim
        if table_index not in claim.settled:
            is_on = spans.is_on
            with spans.span("wait_rows", self.name, claim.number) if is_on else NOTHING:
                self._await(claim, slot, table_index)
        if not claim.settled[table_index] and self._region.has_rows(
            slot, table_index, claim.number
        ):
            is_on = spans.is_on
            with spans.span("copy_rows", self.name, claim.number) if is_on else NOTHING:
                self._region.copy_rows(
                    slot, table_index, claim.num_tokens, self._codecs[table_index], out
                )
            return
        poison(out)
        raise self._error(claim, slot, table_index)

    def release(self, claim: Claim) -> None:
        """Frees the slot: every table of it is settled."""
        assert claim.slot is not None, claim
        is_on = self._spans.is_on
        with self._spans.span("release", self.name, claim.number) if is_on else NOTHING:
            self._region.free_slot(claim.slot, claim.number)

    def give_up(self, claim: Claim) -> None:
        """Frees the slot now, if it has one."""
        with self._spans.span("release", self.name, claim.number):
            free_slot(self._region, claim, self._timeout_s)

    def _error(self, claim: Claim, slot: SlotPlaces, table_index: int) -> RowFetchError:
        """Returns why a table that is settled has no rows."""
        if why := claim.settled[table_index]:
            return timed_out(claim, table_index, self._timeout_s, why)
        return failed_answer(
            claim, table_index, self._region.answer(slot, table_index), self._files[table_index]
        )

    def _await(self, claim: Claim, slot: SlotPlaces, table_index: int) -> None:
        """Settles a table: its answer is there, or it is given up."""
        deadline = claim.requested_at + self._timeout_s
        while True:
            left = deadline - time.monotonic()
            if self._region.wait_ready(slot, table_index, max(0.0, min(left, LIVENESS_S))):
                claim.settled[table_index] = ""
                return
            why_dead = self._service.why_dead()
            if why_dead or left <= 0:
                break
        # Before the request is given up: locked for nothing, the slot is free once it is answered.
        self._quarantine.add(slot, claim.number)
        places = claim.states
        assert places is not None, claim
        is_given_up = self._region.abandon(places, claim.number, table_index)
        if is_given_up or self._region.is_abandoned(places, claim.number, table_index):
            claim.settled[table_index] = why_dead or no_answer(self._timeout_s)
            return
        # The answer was published just now: its flag follows at once.
        self._region.wait_ready(slot, table_index, LIVENESS_S)
        claim.settled[table_index] = ""


def newest_request(noted: int, announced: int) -> int:
    """Returns the newest request of a lane.

    An interrupt may have come after it was announced and before that was noted. Another process can
    write the announced number, so it moves ours by one at most.
    """
    return noted + 1 if announced == noted + 1 else noted


def poison(out: torch.Tensor) -> None:
    """Fills a result that has no rows with NaN (encoded: with the codes 0xFF)."""
    out.fill_(0xFF if out.dtype == torch.uint8 else float("nan"))


__all__ = ["SlotLane", "SlotParts", "newest_request"]
