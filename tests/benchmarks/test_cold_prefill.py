"""`python -m benchmarks.cold_prefill`, its kernels interpreted: what is measured, and how."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from abilities import ask_for
from cuda_side_stage import CallingThread, use_cuda_side

from benchmarks import cold_prefill as benchmark
from benchmarks import harness
from benchmarks.gpu_full_table import full_spec
from benchmarks.offload_prefill import Prefill, PromptRun
from benchmarks.stand_in import OPTIONS, StageSize
from benchmarks.table_folder import formula_shards, write_table_folder
from gramary import Table

SIZE = StageSize("cpu", hidden_size=32, num_layers=2, chunk_tokens=32, num_chunks=3)
# Gather and stage in microseconds, by tokens: hidden below 80 %, which 16 tokens just miss.
TIMES = {32: (900.0, 500.0), 16: (240.0, 300.0), 8: (100.0, 250.0), 4: (50.0, 200.0)}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ask_for("triton")
    use_cuda_side(monkeypatch, CallingThread())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    spec = full_spec(500)
    return write_table_folder(tmp_path, spec, formula_shards(spec, 3, "cpu"))


@pytest.fixture
def table(model: Path) -> Iterator[Table]:
    with benchmark.open_on_disk(model, "cpu") as table:
        yield table


def test_the_longest_chunk_whose_gather_is_hidden_is_measured(
    table: Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: Prefill, early: bool) -> PromptRun:
        assert early
        assert self.is_cold
        gather_us, stage_us = TIMES[self.size.chunk_tokens]
        return PromptRun([], [], 0.0, stage_us, gather_us)

    monkeypatch.setattr(Prefill, "run", run)
    prefill, times = benchmark.find_longest(SIZE, table)
    assert prefill.size.chunk_tokens == 8
    assert prefill.size.num_chunks == benchmark.NUM_MEASURED
    assert times == {"gather_us": 100, "stage_us": 250}
    assert "16 tokens: gather 240 us, stage 300 us" in capsys.readouterr().out


def test_no_chunk_may_compute_for_long_enough(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = PromptRun([], [], 0.0, 1.0, 2.0)
    monkeypatch.setattr(Prefill, "run", lambda *_, **__: never)
    with pytest.raises(AssertionError, match="no chunk computes for as long"):
        benchmark.find_longest(SIZE, table)


def test_idle_time(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "NUM_MEASURED", 3)
    case = benchmark.idle_case(SIZE, table, repeats=1, hidden_part=1e9)
    measured = harness.measure(case)
    assert measured["cache"] == "cold"
    parameters, target = measured["parameters"], measured["targets"]["early requests on"]
    assert parameters["tokens"] == SIZE.chunk_tokens
    assert target["of"] == "median"
    assert target["at_most"] == pytest.approx(0.02 * parameters["stage_us"], abs=0.05)
    assert [len(case.samples[option]) for option in OPTIONS.values()] == [2, 2]


def test_first_prompts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a process of its own, off and on in turns; the process runs this very command."""
    asked = []

    def run(words: list[str], **_: object) -> SimpleNamespace:
        asked.append(json.loads(words[-1]))
        return SimpleNamespace(stdout=f"{len(asked)}.5\n")

    monkeypatch.setattr(subprocess, "run", run)
    case = benchmark.first_prompt_case(SIZE, model, repeats=2)
    assert case.samples == {OPTIONS[False]: [1.5, 4.5], OPTIONS[True]: [2.5, 3.5]}
    monkeypatch.undo()
    size, folder, early = asked[0]
    assert (StageSize(**size), folder, early) == (SIZE, str(model), False)


def test_a_first_prompt_from_the_command_line(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = json.dumps([{**vars(SIZE)}, str(model), True])
    benchmark.main(["--first", given])
    assert float(capsys.readouterr().out) > 0
