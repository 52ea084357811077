"""Which lane a batch takes: pure, on small numbers."""

from __future__ import annotations

import dataclasses

import pytest
from offload_stage import make_batch, make_table

from gramary import Settings
from gramary.offload.lanes.direct import DirectLane
from gramary.offload.lanes.lane import Lanes
from gramary.offload.routing import Router

FEW = ("direct", "few rows: the GPU reads them")
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
        (dataclasses.replace(RINGING, rings_from_rows=33), FEW, FEW),
        (dataclasses.replace(RINGING, why_direct="because"), ("direct", "because"),
         ("direct", "because")),
    ],
)  # fmt: skip
def test_each_batch_has_its_lane(
    router: Router, prompt: tuple[str, str], decode: tuple[str, str]
) -> None:
    host, stream, direct = (DirectLane([]) for _ in range(3))
    lanes = {"host": host, "stream": stream, "direct": direct}
    for batch, (name, reason) in ((PROMPT, prompt), (DECODE, decode)):
        assert router.choose(batch, Lanes(**lanes)) == (lanes[name], reason)


def test_cpu_tables_always_ring() -> None:
    with make_table() as table:
        for force_doorbell in (False, True):
            settings = Settings(force_doorbell=force_doorbell)
            assert Router.of([table], settings, early=True) == RINGING
