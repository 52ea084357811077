"""How a claim becomes rows: on the CPU, by waiting for the service's flag."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from gramary.errors import RowFetchError
from gramary.model.codecs import Codec
from gramary.native.ring import SlotPlaces, StatePlaces
from gramary.native.rows import decode
from gramary.offload.giving_up.fetch_error import failed_answer, no_answer, timed_out
from gramary.offload.lanes.numbering import Quarantine
from gramary.offload.memory.region import Region
from gramary.offload.service.base import Service
from gramary.offload.ticket import Claim
from gramary.tracing import SpanLog

# How often a waiting consumer asks whether its worker still lives.
LIVENESS_S = 0.25


class HostConsumer:
    """Takes rows into CPU tensors; waits on the calling thread.

    Args:
        region: the shared memory.
        service: the row service, asked for its life while waiting.
        codecs: encoding of each layer's rows.
        files: paths of each layer's disk rows, for messages.
        timeout_s: how long an answer may take.
        quarantine: told of slots whose request is given up.
        spans: told what the calling thread did when.
    """

    def __init__(
        self,
        region: Region,
        service: Service,
        codecs: Sequence[Codec],
        files: Sequence[Sequence[str]],
        timeout_s: float,
        quarantine: Quarantine,
        spans: SpanLog,
    ) -> None:
        self._region = region
        self._service = service
        self._codecs = tuple(codecs)
        self._files = tuple(files)
        self._timeout_s = timeout_s
        self._quarantine = quarantine
        self._spans = spans

    def take(self, claim: Claim, layer: int, out: torch.Tensor) -> None:
        """Waits for a layer's rows and writes them, decoded, to `out`.

        The shared memory stays as it is, so that a call that is broken off can be made again until
        the slot is freed.

        Args:
            claim: a claim of this connector with a slot.
            layer: which layer's rows.
            out: [T, heads * width] in an output dtype, contiguous.

        Raises:
            RowFetchError: the rows could not be had; `out` is NaN then.
        """
        if layer not in claim.settled:
            with self._spans.span("wait_rows", claim.lane, claim.number):
                self._await(claim, require_slot(claim), layer)
        error = self._copy(claim, require_slot(claim), layer, out)
        if error is not None:
            poison(out)
            raise error

    def _copy(
        self, claim: Claim, slot: SlotPlaces, layer: int, out: torch.Tensor
    ) -> RowFetchError | None:
        """Decodes an answer's rows, or returns why there are none."""
        if why := claim.settled[layer]:
            return timed_out(claim, layer, self._timeout_s, why)
        if not self._region.has_rows(slot, layer, claim.number):
            answer = self._region.answer(slot, layer)
            return failed_answer(claim, layer, answer, self._files[layer])
        rows = self._region.rows(slot, layer, claim.num_tokens)
        codec = self._codecs[layer]
        flat = out.view(rows.shape[0], codec.output_width(out.dtype))
        with self._spans.span("copy_rows", claim.lane, claim.number):
            decode(codec.name, codec.row_dim, codec.scale, rows, flat)
        return None

    def _await(self, claim: Claim, slot: SlotPlaces, layer: int) -> None:
        """Settles a layer: its answer is there, or it is given up."""
        deadline = claim.requested_at + self._timeout_s
        while True:
            left = deadline - time.monotonic()
            if self._region.wait_ready(slot, layer, max(0.0, min(left, LIVENESS_S))):
                claim.settled[layer] = ""
                return
            why_dead = self._service.why_dead()
            if why_dead or left <= 0:
                break
        # Before the request is given up: locked for nothing, the slot is free once it is answered.
        self._quarantine.add(slot, claim.number)
        places = require_states(claim)
        is_given_up = self._region.abandon(places, claim.number, layer)
        if is_given_up or self._region.is_abandoned(places, claim.number, layer):
            claim.settled[layer] = why_dead or no_answer(self._timeout_s)
            return
        # The answer was published just now: its flag follows at once.
        self._region.wait_ready(slot, layer, LIVENESS_S)
        claim.settled[layer] = ""


def require_states(claim: Claim) -> StatePlaces:
    """Returns where the state words of a claim lie that has a slot; callers see to that."""
    assert claim.states is not None, claim
    return claim.states


def require_slot(claim: Claim) -> SlotPlaces:
    """Returns the slot of a claim that has one; callers see to that."""
    assert claim.slot is not None, claim
    return claim.slot


def poison(out: torch.Tensor) -> None:
    """Fills a result that has no rows with NaN (encoded: with the codes 0xFF)."""
    out.fill_(0xFF if out.dtype == torch.uint8 else float("nan"))


__all__ = ["HostConsumer", "poison", "require_slot", "require_states"]
