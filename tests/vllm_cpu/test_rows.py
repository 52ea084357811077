"""Engines whose rows come from gramary, against stock and against each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_cpu.engine import STOCK, Run, request, run_engine
from vllm_cpu.prompts import PROMPTS

Variant = Callable[[str], Path]
Stock = Callable[[str], Run]


def gramary(**words: Any) -> dict[str, Any]:
    return {"additional_config": {"gramary": words}}


@pytest.mark.parametrize(
    "words",
    [
        {"placement": "disk", "verify_early": True},
        {"placement": "host=1MiB,disk", "worker": "process"},
        {"placement": "host", "prefill_early_request": False},
    ],
    ids=["disk", "split", "late"],
)
def test_tokens_and_log_probabilities_are_stocks(
    stock_outputs: Stock, variant: Variant, tmp_path: Path, words: dict[str, Any]
) -> None:
    rounds = [[request(prompt)] for prompt in PROMPTS]
    run = run_engine(variant("fp8"), rounds, tmp_path, **gramary(**words))
    assert run.samples() == stock_outputs("fp8").samples()[: len(PROMPTS)]
    assert run.left_over == []


def test_a_mixed_schedule_gives_the_rows_of_a_whole_table(variant: Variant, tmp_path: Path) -> None:
    """Chunks of 32 tokens beside decodes: early, late and unsplit, equal to stock's own table."""
    rounds = [[request(prompt, after_steps=2 * index) for index, prompt in enumerate(PROMPTS)]]
    found = []
    for number, words in enumerate(
        (
            STOCK,
            gramary(placement="host=1MiB,disk", verify_early=True),
            gramary(placement="disk", split_mixed=False),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = run_engine(variant("fp8"), rounds, folder, max_num_batched_tokens=32, **words)
        found.append(run.samples())
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_bf16_rows_need_no_word_about_them(
    stock_outputs: Stock, variant: Variant, tmp_path: Path
) -> None:
    rounds = [[request(prompt)] for prompt in PROMPTS]
    run = run_engine(variant("bf16"), rounds, tmp_path, **gramary(placement="disk"))
    assert run.samples() == stock_outputs("bf16").samples()[: len(PROMPTS)]


def test_an_unknown_word_is_refused_before_a_process_starts(
    variant: Variant, tmp_path: Path
) -> None:
    run = run_engine(variant("fp8"), [], tmp_path, fails=True, **gramary(placment="disk"))
    assert run.error is not None
    assert run.error["type"] == "ArgumentError"
    assert "placment" in run.error["message"]
    assert run.left_over == []


def test_a_file_that_changes_ends_the_engine(variant: Variant, tmp_path: Path) -> None:
    """No token of a step whose rows could not be read comes out; the log names the file."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in variant("fp8").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = folder / "model.safetensors"
    rounds = [
        [request(PROMPTS[0])],
        # The engine's program writes to this file before the round.
        [request(PROMPTS[1], rewrite=os.fspath(weights))],
    ]
    run = run_engine(folder, rounds, tmp_path, fails=True, **gramary(placement="disk"))
    assert len(run.rounds) == 1
    assert run.exit_code != 0
    assert run.error is not None
    assert weights.name in run.log
    assert "RowFetchError" in run.log or "RowReadError" in run.log
    assert run.left_over == []
