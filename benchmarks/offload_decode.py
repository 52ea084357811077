"""What a decode step's rows cost in a captured graph: request and wait, by where the rows are."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from benchmarks.harness import Case
from benchmarks.offload_tables import (
    WARM,
    OffloadTables,
    open_connector,
    require_same_bits,
)
from benchmarks.receipts.targets import Target
from benchmarks.timers import CudaGraphTimer
from gramary import Batch, Connector, Table

# Steps of a graph, each with tokens of its own.
NUM_STEPS = 20
MAX_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Way:
    """How a step's rows are had.

    Attributes:
        table: from which table.
        rings: whether the service is asked for host rows that the GPU could read itself.
        is_copied: whether a slot's rows are copied before they are decoded.
        limit_us: how much more than with rows on the device a step may take, where promised.
    """

    table: Table
    rings: bool = False
    is_copied: bool = False
    limit_us: float | None = None

    @contextlib.contextmanager
    def chosen(self) -> Iterator[None]:
        """Makes the connector take slots' rows this way for a while."""
        from gramary.offload.cuda import take

        before = take.COPIED_FROM_ROWS
        take.COPIED_FROM_ROWS = 1 if self.is_copied else before
        try:
            yield
        finally:
            take.COPIED_FROM_ROWS = before


def ways_of(tables: OffloadTables, num_requests: int) -> dict[str, Way]:
    """Returns the ways of a step of 1 or 64 requests, the baseline first."""
    host, limit_us = tables.host, {1: 15, 64: 25}[num_requests]
    ways = {
        "device": Way(tables.device),
        "host, read by the GPU": Way(host, limit_us=limit_us),
        "host, doorbell": Way(host, rings=True, limit_us=limit_us),
    }
    if num_requests == 1:
        return ways | {"disk, doorbell": Way(tables.disk, limit_us=45)}
    return ways | {"host, doorbell, copied first": Way(host, rings=True, is_copied=True)}


def decode_batches(table: Table, num_requests: int) -> list[Batch]:
    """Returns decode steps of random tokens on the table's device."""
    device = table.device
    generator = torch.Generator(device).manual_seed(num_requests)
    vocab_size = table.spec.vocab_size
    starts = torch.arange(num_requests + 1, dtype=torch.int32, device=device)

    def tokens(*shape: int) -> torch.Tensor:
        return torch.randint(vocab_size, shape, generator=generator, device=device)

    return [
        Batch(tokens(num_requests), starts, history=tokens(num_requests, 2))
        for _ in range(NUM_STEPS)
    ]


class Step:
    """One way's decode step: every call takes the next batch's rows into `out`."""

    def __init__(self, way: Way, connector: Connector, num_requests: int) -> None:
        self.way, self.connector = way, connector
        self._batches = itertools.cycle(decode_batches(way.table, num_requests))
        shape = (num_requests, way.table.spec.embed_dim)
        self.out = torch.empty(shape, dtype=torch.bfloat16, device=way.table.device)

    def __call__(self) -> None:
        """Requests and waits."""
        with self.way.chosen():
            self.connector.wait(self.connector.request(next(self._batches)), out=self.out)


def require_same_rows(steps: Mapping[str, Step]) -> int:
    """Takes one step of every way and compares their rows; returns how many values.

    Raises:
        AssertionError: a way's rows differ from the first's.
    """
    for step in steps.values():
        step()
    first, *others = steps
    ours = steps[first].out
    return sum(require_same_bits(ours, steps[name].out, f"{first}, {name}") for name in others)


@contextlib.contextmanager
def decode_case(
    ways: Mapping[str, Way], num_requests: int, parameters: dict[str, Any]
) -> Iterator[Case]:
    """Opens the connectors of one step's case.

    Args:
        ways: by candidate; the first is the baseline.
        num_requests: requests of the step.
        parameters: for the receipt.
    """
    with contextlib.ExitStack() as opened:
        steps = {}
        for name, way in ways.items():
            connector = open_connector(
                f"{name}, {num_requests} request(s)", way.table, MAX_TOKENS,
                force_doorbell=way.rings,
            )  # fmt: skip
            steps[name] = Step(way, opened.enter_context(connector), num_requests)
        limits = {name: way.limit_us for name, way in ways.items()}
        yield Case(
            name=f"decode step, {num_requests} request(s)",
            parameters={**parameters, "requests": num_requests, "steps": NUM_STEPS},
            candidates=steps,
            baseline=next(iter(steps)),
            targets={name: Target(us, of="difference") for name, us in limits.items() if us},
            check=lambda: require_same_rows(steps),
            checked="every way gives the same bits",
            moved_bytes=num_requests * 16 * (160 + 320),
            cache_note=f"{WARM}; the steps of a graph come again with every replay",
            timer=CudaGraphTimer(calls=NUM_STEPS, replays=20),
        )
