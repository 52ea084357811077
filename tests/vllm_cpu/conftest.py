"""Fixtures of the tests that run in vLLM: checkpoints, and what stock vLLM says about them.

`make test-vllm` runs them in .venv-vllm. `make test` runs where vLLM cannot be installed, and does
not collect them.
"""

from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from vllm_cpu.engine import STOCK, Run, request, run_engine
    from vllm_cpu.prompts import PROMPTS
    from vllm_cpu.shared import common_folder, make_once
    from vllm_cpu.variants import write_variant


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all test processes of the session have in common."""
    folder = common_folder(tmp_path_factory.getbasetemp()) / "common"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def variant(common: Path) -> Callable[[str], Path]:
    """`variant(name)`: the folder of a variant of models/tiny, not to change."""
    return lambda name: Path(
        make_once(common, f"variant-{name}", lambda: str(write_variant(name, common / name)))
    )


@pytest.fixture(scope="session")
def stock_outputs(common: Path, variant: Callable[[str], Path]) -> "Callable[[str], Run]":
    """`stock_outputs(name)`: what vLLM gives without gramary, one stage and one rank.

    Rounds 0 to 2 are the prompts one at a time, round 3 is all of them together.
    """

    def run(name: str) -> Run:
        rounds = [[request(prompt)] for prompt in PROMPTS]
        rounds.append([request(prompt) for prompt in PROMPTS])
        folder = common / f"run-stock-{name}"
        made = make_once(
            common,
            f"stock-{name}",
            lambda: asdict(run_engine(variant(name), rounds, folder, **STOCK)),
        )
        return Run(**made)

    return run
