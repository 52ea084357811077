"""Pipeline stages in stock vLLM: refused, and what they give where the tests lift the refusal."""

from collections.abc import Callable
from pathlib import Path

from vllm_cpu.engine import STOCK, Run, request, run_engine
from vllm_cpu.prompts import PROMPTS

# Both stages are processes.
TWO_STAGES = {"VLLM_ENABLE_V1_MULTIPROCESSING": None}


def test_stock_refuses_two_stages(variant: Callable[[str], Path], tmp_path: Path) -> None:
    run = run_engine(
        variant("stages"),
        [],
        tmp_path,
        environment=TWO_STAGES,
        fails=True,
        pipeline_parallel_size=2,
        **STOCK,
    )
    assert run.exit_code != 0
    assert run.error is not None
    assert "requires pipeline_parallel_size=1" in run.error["message"]
    assert run.left_over == []


def test_two_stages_give_the_tokens_of_one(
    stock_outputs: Callable[[str], Run], variant: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_engine(
        variant("stages"),
        [[request(prompt)] for prompt in PROMPTS],
        tmp_path,
        environment=TWO_STAGES | {"GRAMARY_TESTS_STOCK_STAGES": "1"},
        pipeline_parallel_size=2,
        **STOCK,
    )
    assert run.samples() == stock_outputs("stages").samples()[:3]
    assert run.left_over == []
