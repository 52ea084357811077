"""Which lane a batch takes: pure, on small numbers."""

from __future__ import annotations

import dataclasses

import pytest
from offload_stage import make_batch, make_table

from gramary import Settings
from gramary.offload.routing import Route, Router

PROMPT, DECODE = make_batch(0), make_batch(1, prefill=False)

# Eight tokens of four heads each: 32 rows.
RINGING = Router(early=True, rows_per_token=4)


@pytest.mark.parametrize(
    ("router", "prompt", "decode"),
    [
        (RINGING, ("host", "prompt-only"), ("stream", "decode")),
        (
            dataclasses.replace(RINGING, early=False),
            ("stream", "prefill_early_request is off"),
            ("stream", "decode"),
        ),
        (dataclasses.replace(RINGING, rings_from_rows=32), ("host", "prompt-only"),
         ("stream", "decode")),
        (dataclasses.replace(RINGING, rings_from_rows=33), ("none", "few rows: the GPU reads them"),
         ("none", "few rows: the GPU reads them")),
        (dataclasses.replace(RINGING, why_none="because"), ("none", "because"),
         ("none", "because")),
    ],
)  # fmt: skip
def test_each_batch_has_its_lane(
    router: Router, prompt: tuple[str, str], decode: tuple[str, str]
) -> None:
    assert router.route(PROMPT) == Route(*prompt)
    assert router.route(DECODE) == Route(*decode)


def test_cpu_tables_always_ring() -> None:
    with make_table() as table:
        for force_doorbell in (False, True):
            settings = Settings(force_doorbell=force_doorbell)
            assert Router.of([table], settings, early=True) == RINGING
