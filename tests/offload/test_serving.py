"""What an engine's forwards promise, with rows through the connector: drafts, padding, counters."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from offload_stage import expected_rows

from gramary import Batch, Connector, PLELayer, Settings, Table
from gramary.layer import PLEState

SETTINGS = Settings(request_timeout_s=20, num_threads=1)
NUM_DRAFTS = 3


@pytest.fixture(params=["host", "disk"])
def table(request: pytest.FixtureRequest, checkpoint: Path) -> Any:
    with Table.open(checkpoint, placement=request.param) as opened:
        yield opened


def bounds_of(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def decode_batch(state: PLEState, tokens: torch.Tensor, lengths: list[int]) -> Batch:
    """The stream lane's batch: a token and its drafts for each request, histories of the state."""
    return Batch(
        tokens,
        bounds_of(lengths),
        history=state.history(),
        is_prefill=False,
        num_drafts=[length - 1 for length in lengths],
    )


def padded_batch(table: Table, num_live: int) -> Batch:
    """Returns requests of 3 tokens each, padded to 16 by what is no token at all."""
    tokens = torch.arange(3 * num_live) % table.spec.vocab_size
    padding = torch.tensor([-1, 2**62] * 16)[: 16 - len(tokens)]
    return Batch(
        torch.cat([tokens, padding]),
        bounds_of([3] * num_live),
        is_prefill=True,
        num_padding=len(padding),
    )


@pytest.mark.behaviour(24)
def test_rows_behind_rejected_drafts_are_those_of_the_accepted_tokens(
    table: Table, checkpoint: Path
) -> None:
    """Behaviour 24: rows, histories and windows equal those of a run that never drafted."""
    layer = PLELayer.from_checkpoint(checkpoint, table=table)
    chance = random.Random(1)
    generator = torch.Generator().manual_seed(2)
    num_requests, channels = 3, layer.geometry.channels
    drafting = layer.new_state(num_requests, max_speculative_tokens=NUM_DRAFTS)
    plain = layer.new_state(num_requests)
    with Connector(table, max_tokens=32, settings=SETTINGS) as connector:
        for _ in range(12):
            lengths = [1 + chance.randrange(NUM_DRAFTS + 1) for _ in range(num_requests)]
            accepted = [1 + chance.randrange(length) for length in lengths]
            tokens = torch.randint(table.spec.vocab_size, (sum(lengths),), generator=generator)
            hidden = torch.randn(sum(lengths), channels, generator=generator).to(layer.dtype)
            rows = connector.wait(connector.request(decode_batch(drafting, tokens, lengths)))
            got = layer(hidden, tokens, bounds_of(lengths), state=drafting, rows=rows)
            ends = drafting.positions - torch.tensor(lengths) + torch.tensor(accepted)
            drafting.rewind(ends)
            stands = torch.cat(
                [torch.arange(n) < kept for n, kept in zip(lengths, accepted, strict=True)]
            )
            bounds = bounds_of(accepted)
            expected = table.embed(tokens[stands], bounds, plain.history())
            assert torch.equal(rows[stands], expected)
            wanted = layer(hidden[stands], tokens[stands], bounds, state=plain, rows=expected)
            torch.testing.assert_close(got[stands], wanted, rtol=2e-2, atol=2e-2)
            assert torch.equal(drafting.history(), plain.history())
        lanes = connector.stats()["lanes"]
    assert sum(lanes.values()) == 12
    assert set(lanes) <= {"stream: drafts", "stream: decode"}


@pytest.mark.behaviour(25)
@pytest.mark.parametrize("num_live", [0, 1, 2])
def test_padding_gives_zeros_and_reads_no_row(checkpoint: Path, num_live: int) -> None:
    """Behaviour 25: tokens behind the last request are no tokens, whatever stands there."""
    with (
        Table.open(checkpoint) as resident,
        Table.open(checkpoint, placement="disk") as table,
        Connector(table, max_tokens=32, settings=SETTINGS) as connector,
    ):
        batch = padded_batch(table, num_live)
        live = batch.num_tokens - batch.num_padding
        out = torch.full((batch.num_tokens, table.spec.embed_dim), float("nan"))
        connector.wait(connector.request(batch), out=out)
        read = table.tiers[0].stats()["num_rows"]
        assert connector.stats()["lanes"] == {"stream: padding": 1}
        assert torch.equal(out, expected_rows(resident, batch, torch.float32))
    assert not out[live:].any()
    assert read == live * table.spec.num_heads


@pytest.mark.behaviour(34)
@pytest.mark.parametrize("worker", ["thread", "process"])
def test_counters_tell_lanes_rows_and_where_the_time_went(table: Table, worker: Any) -> None:
    """Behaviour 34: which lane each batch took and why, what was gathered, and how long it took."""
    prompt = list(range(40))
    chunks = [Batch.from_prompts(table.spec, [prompt], [start], [10]) for start in (0, 10, 20, 30)]
    decode = Batch(torch.tensor([1, 2]), bounds_of([1, 1]), is_prefill=False)
    with Connector(table, max_tokens=16, worker=worker, settings=SETTINGS) as connector:
        for batch in (*chunks, decode, decode):
            connector.wait(connector.request(batch))
        connector.cancel(connector.request(chunks[0]))
        open_ticket = connector.request(decode)
        assert connector.stats()["open_tickets"] == 1
        connector.wait(open_ticket)
        stats = connector.stats()
    assert stats["lanes"] == {"host: prompt-only": 5, "stream: decode": 3}
    assert stats["open_tickets"] == stats["failures"] == 0
    assert stats["stream_requests"] == 3
    assert 4 <= stats["host_requests"] <= 5
    rows = (4 * 10 + 3 * 2) * table.spec.num_heads
    assert rows <= stats["rows"] <= rows + 10 * table.spec.num_heads
    assert stats["gathering_ns"] > 0
    assert stats["waiting_ns"] >= 0
