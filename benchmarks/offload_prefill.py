"""What a prompt's rows cost a stage that reads it in chunks, early requests off and on.

Idle is the time on the compute stream between events around the waits for the rows' flag, copy and
decoding excluded, chunks 2..N.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from benchmarks.disk_files import drop_cache
from benchmarks.harness import MeasuredCase
from benchmarks.offload_tables import WARM, embed, moved, require_same_bits, settings
from benchmarks.receipts.targets import Target
from benchmarks.stand_in import (
    OPTIONS,
    WARM_LIMIT,
    StageSize,
    StandIn,
    chunks_of_prompt,
    files_of,
    in_turns,
    require_same_outputs,
    tickets_of,
)
from gramary import Connector, Table
from gramary.offload.cuda.streams import Event
from gramary.offload.ticket import Ticket
from gramary.tracing import SpanLog

COLD = "the table's files dropped from the page cache before every prompt; uniform random tokens"

Pair = tuple[Event, Event]


class TimedWaits:
    """A connector's streams, with events around every wait for a word."""

    def __init__(self, connector: Connector) -> None:
        self._streams = connector._device.streams  # type: ignore[attr-defined]
        connector._device.streams = self  # type: ignore[attr-defined]
        self.events: list[Pair] = []

    def wait(self, address: int, value: int) -> None:
        """Waits between two events."""
        begin, end = self.new_event(), self.new_event()
        begin.record()
        self._streams.wait(address, value)
        end.record()
        self.events.append((begin, end))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._streams, name)


@dataclasses.dataclass(frozen=True)
class PromptRun:
    """One prompt, read with one option.

    Attributes:
        outputs: the residual streams behind every chunk.
        idle_us: how long chunks 2..N waited for their rows.
        chunk_ms: time of a chunk, on average.
        stage_us: the same without the waiting, the first chunk's too.
        gather_us: the row service's time for a chunk's rows, on average.
    """

    outputs: list[torch.Tensor]
    idle_us: list[float]
    chunk_ms: float
    stage_us: float
    gather_us: float


class Prefill:
    """Chunks of one long prompt through the stage, with early requests on or off.

    Args:
        size: the stage's.
        table: where rows come from.
        is_cold: whether the table's files are dropped from the page cache before each prompt.
    """

    def __init__(self, size: StageSize, table: Table, *, is_cold: bool = False) -> None:
        self.size, self.table, self.is_cold = size, table, is_cold
        self.stage = StandIn(size, table)
        self.chunks = chunks_of_prompt(size, table)
        self.on_device = [moved(chunk, size.device) for chunk in self.chunks]
        shape = (size.num_chunks, size.chunk_tokens, table.spec.embed_dim)
        self.rows = torch.empty(shape, dtype=size.dtype, device=size.device)

    def run(self, early: bool) -> PromptRun:
        """Reads the prompt once; its rows stay in `rows` until the next run."""
        self.rows.fill_(float("nan"))
        if self.is_cold:
            drop_cache(*files_of(self.table))
        with Connector(
            self.table,
            max_tokens=self.size.chunk_tokens,
            prefill_early_request=early,
            settings=settings(force_doorbell=True),
        ) as connector:
            waits = TimedWaits(connector)
            begin, end = waits.new_event(), waits.new_event()
            begin.record()
            outputs, waited = self._read_prompt(connector, early, waits)
            end.record()
            waits.synchronize()
            connector.check()
            gather_us = connector.stats()["gathering_ns"] / 1e3 / len(self.chunks)
        chunk_ms = begin.elapsed_time(end) / len(self.chunks)
        idle_us = [_spent_us(events) for events in waited]
        stage_us = chunk_ms * 1e3 - sum(idle_us) / len(idle_us)
        return PromptRun(outputs, idle_us[1:], chunk_ms, stage_us, gather_us)

    def _read_prompt(
        self, connector: Connector, early: bool, waits: TimedWaits
    ) -> tuple[list[torch.Tensor], list[list[Pair]]]:
        """Returns the output of every chunk, and the events around its waits."""
        state, nothing = self.stage.new_state(), SpanLog("compute")
        outputs, waited = [], []
        # Off, the tokens are on the device since the forward before.
        tickets = tickets_of(connector, self.chunks if early else self.on_device, early)
        turns = zip(tickets, self.on_device, self.rows, strict=True)
        for ticket, chunk, rows in turns:
            first = len(waits.events)

            def take(ticket: Ticket = ticket, rows: torch.Tensor = rows) -> torch.Tensor:
                return connector.wait(ticket, out=rows)

            outputs.append(self.stage.forward(chunk, state, take, nothing))
            waited.append(waits.events[first:])
        return outputs, waited

    def check(self) -> int:
        """Compares every chunk's rows with the table's own call, and its outputs off and on."""
        compared, outputs = 0, []
        for early in OPTIONS:
            outputs.append(self.run(early).outputs)
            for chunk, rows in zip(self.chunks, self.rows, strict=True):
                expected = embed(self.table, chunk, dtype=self.size.dtype)
                compared += require_same_bits(rows, expected, OPTIONS[early])
        return compared + require_same_outputs(*outputs)

    def case(
        self, name: str, parameters: dict[str, Any], repeats: int, limit: Target = WARM_LIMIT
    ) -> MeasuredCase:
        """Returns the measured case: off and on in alternating order.

        Args:
            name: the case's.
            parameters: for the receipt, beside the stage's own.
            repeats: prompts of each option.
            limit: what is promised of a chunk whose rows were requested early.
        """
        compared = self.check()
        samples: dict[str, list[float]] = {option: [] for option in OPTIONS.values()}
        for early in in_turns(repeats):
            run = self.run(early)
            samples[OPTIONS[early]] += run.idle_us
        worst = {key: round(max(values), 1) for key, values in samples.items()}
        print(f"{name}: chunk {run.chunk_ms:.1f} ms, worst idle us {worst}")
        return MeasuredCase(
            name=name,
            parameters={
                **parameters, "chunk_ms": round(run.chunk_ms, 2), "chunks": self.size.num_chunks,
                "tokens": self.size.chunk_tokens, "layers": self.size.num_layers,
                "worst_on_us": worst[OPTIONS[True]],
            },
            samples=samples,
            baseline=OPTIONS[False],
            targets={OPTIONS[True]: limit},
            check=lambda: compared,
            checked="rows of every chunk equal the table's own, off and on, and the residual "
            "streams behind every chunk are the same, bit by bit",
            moved_bytes=self.rows.numel() // len(self.chunks),
            cache="cold" if self.is_cold else "warm",
            cache_note=COLD if self.is_cold else WARM,
            unit="us",
            timer_name="cuda_events",
        )  # fmt: skip


def _spent_us(waits: list[Pair]) -> float:
    return round(sum(begin.elapsed_time(end) * 1e3 for begin, end in waits), 3)
