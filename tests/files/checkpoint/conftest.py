"""Spoiling checkpoints: copy one, change its tensors or its configuration."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file


@pytest.fixture
def change_tensors(copy_checkpoint: Callable[..., Path]) -> Callable[..., Path]:
    """`change_tensors(change, **options)`: a copy whose tensors `change(tensors)` altered."""

    def spoil(change: Callable[[dict[str, torch.Tensor]], object], **options: Any) -> Path:
        folder = copy_checkpoint(**options)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return spoil


@pytest.fixture
def change_config(copy_checkpoint: Callable[..., Path]) -> Callable[..., Path]:
    """`change_config(change, **options)`: a copy whose config.json `change(config)` altered."""

    def spoil(change: Callable[[dict[str, Any]], object], **options: Any) -> Path:
        folder = copy_checkpoint(**options)
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return spoil
