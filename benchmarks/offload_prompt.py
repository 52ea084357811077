"""What a whole prompt's rows take from the request to decoded rows, nothing hidden behind work."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.harness import Case
from benchmarks.offload_tables import WARM, embed, moved, open_connector, require_same_bits
from benchmarks.receipts.targets import Target
from benchmarks.timers import CpuTimer
from gramary import Batch, Table

LIMIT_US = 1600
# The service's threads are awake: how they are woken is not what is asked.
POLL = "spin"
READS, RINGS = "the GPU reads host rows", "connector, host lane"


def prompt_batches(table: Table, num_tokens: int) -> list[Batch]:
    """Returns eight prompts of random tokens, on the host."""
    generator = torch.Generator().manual_seed(2)
    prompts = (
        torch.randint(table.spec.vocab_size, (num_tokens,), generator=generator) for _ in range(8)
    )
    return [Batch.from_prompts(table.spec, [prompt], [0], [num_tokens]) for prompt in prompts]


@contextlib.contextmanager
def prompt_case(table: Table, num_tokens: int, parameters: dict[str, Any]) -> Iterator[Case]:
    """Opens the connector of the case: a host batch's rows, or the GPU's own reads."""
    name = f"request to decoded rows, {num_tokens} tokens"
    with open_connector(name, table, num_tokens, force_doorbell=True, poll=POLL) as connector:
        batches = prompt_batches(table, num_tokens)
        asked = itertools.cycle(batches)
        at_hand = itertools.cycle([moved(batch, table.device) for batch in batches])
        shape = (num_tokens, table.spec.embed_dim)
        options: dict[str, Any] = {"dtype": torch.bfloat16, "device": table.device}
        rung, read = (torch.empty(shape, **options) for _ in range(2))

        def ring() -> None:
            connector.wait(connector.request(next(asked)), out=rung)
            torch.cuda.synchronize()

        def read_itself() -> None:
            embed(table, next(at_hand), out=read)
            torch.cuda.synchronize()

        def check() -> int:
            ring()
            read_itself()
            return require_same_bits(rung, read, f"{READS}, {RINGS}")

        yield Case(
            name=name,
            parameters={**parameters, "tokens": num_tokens, "poll": POLL},
            candidates={READS: read_itself, RINGS: ring},
            baseline=READS,
            targets={RINGS: Target(LIMIT_US, of="median")},
            check=check,
            checked="both ways give the same bits",
            moved_bytes=num_tokens * 16 * (160 + 320),
            cache_note=WARM,
            timer=CpuTimer(once=True),
            num_samples=25,
        )
