"""Tensor parallelism: ranks hold shards, and what they read sums to the whole table's rows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from table_stage import encoded_table, small_spec, write_table_folder

TESTS = Path(__file__).parent


def run_ranks(backend: str, size: int, path: Path) -> None:
    """Runs a process for each rank and requires that all of them succeed."""
    encoded, codec = encoded_table(small_spec(), "fp8")
    folder = write_table_folder(path / "model", small_spec(), encoded, codec)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, TESTS / "support" / "shard_worker.py", backend, str(rank), str(size),
             path / "store", folder],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        for rank in ranks:
            output, errors = rank.communicate(timeout=120)
            assert (rank.returncode, output) == (0, "ok\n"), errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_two_ranks_sum_to_the_whole_over_gloo(tmp_path: Path) -> None:
    run_ranks("gloo", 2, tmp_path)


@pytest.mark.gpu
@pytest.mark.two_gpus
def test_two_gpus_sum_to_the_whole_over_nccl(tmp_path: Path) -> None:
    run_ranks("nccl", 2, tmp_path)
