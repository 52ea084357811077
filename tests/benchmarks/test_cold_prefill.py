"""`python -m benchmarks.cold_prefill`: which chunk is measured, and what its receipt holds."""

from pathlib import Path

import pytest
import torch

from benchmarks import cold_prefill as benchmark
from benchmarks.overlap import Run
from benchmarks.stand_in import OPTIONS
from gramary import receipts
from gramary.tracing import Span

MS = 1_000_000


def run_of(*spans: Span) -> Run:
    return Run([torch.ones(1)], [0.0], 1.0, list(spans), {})


def test_a_chunks_times_are_its_pieces_and_its_blocks() -> None:
    """Two requests, the first gathered in two pieces; the stage's three blocks of two chunks."""
    run = run_of(
        Span("read_disk", "service", 0, 2 * MS, "host", 1),
        Span("gather", "service", 3 * MS, 4 * MS, "host", 1),
        Span("read_disk", "service", 5 * MS, 10 * MS, "host", 2),
        Span("publish", "service", 0, 50 * MS, "host", 2),
        Span("dense layers", "compute", 0, 4 * MS),
        Span("wait_rows", "stream", 4 * MS, 90 * MS),
        Span("PLE layer", "compute", 90 * MS, 91 * MS),
        Span("dense layers", "compute", 91 * MS, 96 * MS),
    )
    times = benchmark.times_of(run, num_chunks=2)
    assert (times.gather_us, times.compute_us) == (4_000, 5_000)
    assert not times.is_hidden
    assert benchmark.ChunkTimes(3_999, 5_000).is_hidden


def test_smoke(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    receipt_file = tmp_path / "receipt.json"
    benchmark.main(["--smoke", "--out", str(receipt_file), "--revision", "0" * 40])
    receipt = receipts.read(receipt_file)
    idle, total, first = receipt["cases"]
    for case in (idle, total, first):
        assert list(case["candidates"]) == list(OPTIONS.values())
        assert case["cache"] == "cold"
    facts = idle["parameters"]
    assert f"{facts['chunk_tokens']} tokens: gather" in capfd.readouterr().out
    limit = idle["targets"][OPTIONS[True]]
    assert limit["of"] == "median"
    assert limit["at_most"] == pytest.approx(0.02 * facts["stage_us"], rel=0.01)
    assert facts["gather_us"] < 0.8 * facts["stage_us"]
