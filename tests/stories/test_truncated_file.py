"""The table's file is cut off while it serves: an error that names it, then another copy serves."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_engine import TINY
from stories.oracle import Oracle

from gramary.errors import RowReadError
from gramary.integrations.transformers import load, open_tables


def write(model: Any, prompt: list[int], device: str) -> list[int]:
    """Returns eight greedy tokens behind a prompt."""
    ids = torch.tensor([prompt], device=device)
    words = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False}
    out = model.generate(ids, **words)
    if device == "cuda":
        # Rows that could not be read are NaN there until somebody asks.
        model.tables[0].check()
    return out[0, len(prompt) :].tolist()


@pytest.mark.behaviour(32)
def test_a_file_cut_off_while_it_serves(
    device: str, oracle: Callable[..., Oracle], prompts: list[list[int]], tmp_path: Path
) -> None:
    """Behaviour 32: an error with file and errno, never other rows; and no request is poisoned."""
    prompt = prompts[0]
    expected = oracle(device, torch.bfloat16).continue_greedily(prompt, 8)
    served = Path(shutil.copytree(TINY, tmp_path / "model")) / "model.safetensors"
    with load(TINY, placement="disk").to(device) as model:
        model.close()
        open_tables(model, served.parent, placement="host=64KiB,disk")
        assert write(model, prompt, device) == expected
        os.truncate(served, 1 << 20)
        with pytest.raises(RowReadError) as caught:
            write(model, prompt, device)
        assert caught.value.file == str(served)
        assert str(served) in str(caught.value)
        # The rows that were in memory are still right, and another copy takes over at once.
        table = model.tables[0]
        first = table.lookup(torch.arange(8, device=table.device))
        model.close()
        open_tables(model, TINY, placement="disk")
        assert torch.equal(model.tables[0].lookup(torch.arange(8, device=table.device)), first)
        assert write(model, prompt, device) == expected
