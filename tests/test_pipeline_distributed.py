"""Pipeline parallelism: the stage that owns the PLE layer alone opens its table, same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from table_stage import encoded_table, same_bits, small_spec, write_table_folder

TESTS = Path(__file__).parent
WORKER = TESTS / "support" / "pipeline_worker.py"


def run_stages(backend: str, size: int, folder: Path, out: Path) -> list[dict[str, Any]]:
    """Runs a process for each stage; returns what each says of its tables and lanes."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, WORKER, backend, str(rank), str(size), folder, out],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    said = []
    try:
        for rank in ranks:
            output, errors = rank.communicate(timeout=120)
            assert rank.returncode == 0, errors
            said.append(json.loads(output))
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return said


def check_two_stages(backend: str, path: Path) -> None:
    """Stage 0 owns the layer and asks early; hidden states and tokens are those of one process."""
    encoded, codec = encoded_table(small_spec(), "fp8")
    folder = write_table_folder(path / "model", small_spec(), encoded, codec, num_layers=6)
    (whole,) = run_stages(backend, 1, folder, path / "whole.pt")
    first, second = run_stages(backend, 2, folder, path / "staged.pt")
    decode_reason = "stream: device tokens" if backend == "nccl" else "stream: prefill unknown"
    assert whole["tables"] == 1
    assert first == {"tables": 1, "lanes": {"host: prompt-only": 4, decode_reason: 4}}
    assert second == {"tables": 0, "lanes": {}}
    expected, got = (torch.load(path / f"{name}.pt") for name in ("whole", "staged"))
    assert same_bits(got["hidden"], expected["hidden"])
    assert torch.equal(got["tokens"], expected["tokens"])
    assert expected["hidden"].isfinite().all()
    assert expected["tokens"].unique().numel() > 1


def test_two_stages_equal_one_process_over_gloo(tmp_path: Path) -> None:
    check_two_stages("gloo", tmp_path)


@pytest.mark.gpu
@pytest.mark.two_gpus
def test_two_stages_equal_one_process_over_nccl(tmp_path: Path) -> None:
    check_two_stages("nccl", tmp_path)
