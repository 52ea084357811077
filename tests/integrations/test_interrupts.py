"""Kind 15 in transformers: a load and a generate that are interrupted leave nothing held."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupts import held_by_process, interrupt_everywhere, require_held

from gramary.integrations.transformers import load, open_tables

OPTIONS: dict[str, Any] = {"codec": "fp8", "ple_layer_ids": (1, 3)}
PROMPT = {"input_ids": torch.arange(23)[None], "attention_mask": torch.ones(1, 23).long()}


@pytest.fixture(scope="module")
def folder(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(**OPTIONS)


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with load(folder, placement="disk") as opened:
        yield opened


def write(model: Any) -> torch.Tensor:
    return model.generate(
        **PROMPT, prefill_chunk_size=7, max_new_tokens=2, do_sample=False, use_cache=True
    )


def test_kind_15_a_generate(model: Any) -> None:
    """The next prompt is read with its rows requested ahead, as if nothing had been."""
    expected = write(model)
    first_round = model.early_request_stats()

    def check() -> None:
        before = model.early_request_stats()["prompts"]
        assert torch.equal(write(model), expected)
        after = model.early_request_stats()["prompts"]
        assert after["early"] == before["early"] + 1
        assert set(after) == {"early"}

    within = ("integrations/", "offload/connector", "offload/lanes")
    assert interrupt_everywhere(lambda: write(model), check, within=within, every=101) > 3
    assert first_round["prompts"] == {"early": 1}


def test_kind_15_tables_opened_for_a_model(model: Any, folder: Path) -> None:
    """Either its tables are the new ones, or they can be opened again; none is left open."""
    expected = write(model)
    open_tables(model, folder, placement="disk")
    gc.collect()
    held = held_by_process()

    def check() -> None:
        open_tables(model, folder, placement="disk")
        require_held(held)

    within = ("integrations/", "table.py", "row_store", "storage.py", "tiers/disk", "native/disk")
    assert interrupt_everywhere(
        lambda: open_tables(model, folder, placement="disk"), check, within=within, every=37
    )
    assert torch.equal(write(model), expected)


def test_kind_15_a_load(folder: Path) -> None:
    load(folder, placement="host").close()
    gc.collect()
    held = held_by_process()
    interrupt_everywhere(
        lambda: load(folder, placement="host").close(),
        lambda: require_held(held),
        within=("integrations/transformers", "integrations/model_tables"),
        every=131,
    )


def test_kind_15_a_close(folder: Path) -> None:
    load(folder, placement="disk").close()
    gc.collect()
    held = held_by_process()
    models: list[Any] = []

    def check() -> None:
        models[0].close()
        require_held(held)

    interrupt_everywhere(
        lambda: models[0].close(),
        check,
        before=lambda: models.__setitem__(slice(None), [load(folder, placement="disk")]),
        within=("integrations/", "lifetime", "row_store"),
        every=41,
    )
