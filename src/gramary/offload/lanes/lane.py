"""What a lane is: how the rows of one batch come from its request to the caller."""

from __future__ import annotations

import abc
import dataclasses
import time
import weakref
from typing import ClassVar

import torch

from gramary.batch import Batch
from gramary.native.ring import SlotPlaces, StatePlaces


class Lane(abc.ABC):
    """One way of a connector's batches to their rows.

    A claim's life in its lane: `request` → `take` for some tables → `release` behind the last
    table, or `give_up` with tables left. Whatever breaks a call off, the next one of the same claim
    goes on from there; `release` and `give_up` may be called again. Calls come from one thread.

    Attributes:
        name: what callers, counters and spans call it.
        title: what messages call it.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    @abc.abstractmethod
    def request(self, claim: Claim, batch: Batch) -> None:
        """Asks for a batch's rows and returns at once.

        The claim holds its slot from before the first byte is written for it.

        Raises:
            SlotsBusyError: no slot is free.
            FetchTimeoutError: the slot holds a request that was given up and not answered since.
            TokenError: a token on the host lies outside the vocabulary.
        """

    @abc.abstractmethod
    def take(self, claim: Claim, table_index: int, out: torch.Tensor) -> None:
        """Writes a table's rows, decoded, to `out`, once they are there.

        Args:
            claim: requested in this lane, the table not taken before.
            table_index: which table's rows.
            out: [T, heads * width] in an output dtype, contiguous.

        Raises:
            RowFetchError: the rows could not be had and `out` is NaN; on CUDA that is found later,
                and reported by the connector's next call.
        """

    @abc.abstractmethod
    def release(self, claim: Claim) -> None:
        """Frees the slot of a claim whose every table was taken."""

    @abc.abstractmethod
    def give_up(self, claim: Claim) -> None:
        """Frees the slot of a claim behind everything taken; the tables left are given up."""

    def can_give_up(self, claim: Claim) -> bool:  # noqa: ARG002
        """Returns whether `give_up` fits into the order of the current stream, without a ticket
        whose owner would know."""
        return True


@dataclasses.dataclass(eq=False)
class Claim:
    """What a connector holds for one batch, from before a slot is taken until it is given back.

    It is made first, and says at each step what was taken, so that whatever breaks a call off can
    be undone by the next one. It belongs to the caller as long as there is a `Ticket` of it; one
    without is given back.

    Attributes:
        home: what tells the connector that made it from others.
        lane: the lane it was requested in.
        num_tokens: tokens of the batch, padding included.
        num_requests: requests of the batch.
        number: the request's number in its lane (and slot), from 1; 0 in the direct lane, and
            where a GPU counts by itself.
        slot: where the rows arrive; None in the direct lane, or before one was taken.
        states: where its state words lie; None where `slot` is.
        requested_at: when, on the monotonic clock in seconds.
        settled: tables of which nothing more is to come: "" where the answer is there, else why
            it was given up.
        giving_up: tables whose giving up was begun.
        taken: tables whose taking was queued on a device.
        awaited: tables whose rows, or whose error, the caller got.
        failed: those among them that had no rows.
        counted_as: among which lane's requests it is counted; "" where it is not.
        is_released: whether the slot is, or in stream order will be, free: nothing is held.
        is_canceled: whether it was given up before a table was awaited.
        is_captured: whether it was requested while a CUDA graph was captured.
        is_being_queued: whether work for it is being queued on a device.
        batch: what the direct lane reads; None in others.
        owner: the ticket; None before there was one, and where its call was broken off.
    """

    home: object
    lane: Lane
    num_tokens: int
    num_requests: int
    number: int = 0
    slot: SlotPlaces | None = None
    states: StatePlaces | None = None
    requested_at: float = dataclasses.field(default_factory=time.monotonic)
    settled: dict[int, str] = dataclasses.field(default_factory=dict)
    giving_up: set[int] = dataclasses.field(default_factory=set)
    taken: set[int] = dataclasses.field(default_factory=set)
    awaited: set[int] = dataclasses.field(default_factory=set)
    failed: set[int] = dataclasses.field(default_factory=set)
    counted_as: str = ""
    is_released: bool = False
    is_canceled: bool = False
    is_captured: bool = False
    is_being_queued: bool = False
    batch: Batch | None = None
    owner: weakref.ref[object] | None = None

    @property
    def held_slot(self) -> SlotPlaces:
        """The slot of a claim that has one; callers see to that."""
        assert self.slot is not None, self
        return self.slot

    @property
    def held_states(self) -> StatePlaces:
        """Where the state words of a claim with a slot lie."""
        assert self.states is not None, self
        return self.states

    @property
    def is_lost(self) -> bool:
        """Whether there is no ticket of it, by which it could be awaited or canceled."""
        return self.owner is None or self.owner() is None

    @property
    def is_torn(self) -> bool:
        """Whether a call was broken off that queued work: how much of it a device has is not
        known, or the caller was not given what the device has."""
        return self.is_being_queued or not self.taken <= self.awaited

    def how_to_free(self) -> str:
        """Returns what makes its slot free, in words."""
        if self.awaited:
            return "wait for its other layers, call release_outputs(), or cancel it"
        return "wait for it or cancel it"

    def __str__(self) -> str:
        number = f"ticket {self.number} of " if self.number else "the ticket of "
        return (
            f"{number}{self.lane.title} ({self.num_requests} request(s), {self.num_tokens} "
            "token(s))"
        )


@dataclasses.dataclass(frozen=True)
class Lanes:
    """The lanes of one connector.

    Attributes:
        host: prompt-only batches, requested from the host ahead of their forward.
        stream: any batch, in the order of the device's own work.
        direct: batches whose rows the table itself reads when they are taken.
    """

    host: Lane
    stream: Lane
    direct: Lane


__all__ = ["Claim", "Lane", "Lanes"]
