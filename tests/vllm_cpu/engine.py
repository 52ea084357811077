"""Runs one vLLM engine in a process of its own and returns what came out.

An engine takes ten seconds and more to boot, so one run takes many rounds of requests.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_cpu.environment import make_environment
from vllm_cpu.processes import start_session, wait_for_session

PROGRAM = Path(__file__).resolve().parent / "run_engine.py"

GREEDY = {"temperature": 0.0, "max_tokens": 6, "logprobs": 4, "ignore_eos": True}

LLM = {
    "max_model_len": 512,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "seed": 0,
}

SPECIAL = ("after_steps", "abort_after_tokens", "rewrite")

# Stock vLLM pins its table in host memory, which a CPU build cannot; gramary turns that off.
STOCK = {"engram_config": {"cpu_offload": False}}


def request(prompt: str | list[int], **options: Any) -> dict[str, Any]:
    """Returns a request: words of `SPECIAL`, and else sampling parameters.

    It joins after so many steps of the engine, and is aborted when it has so many tokens; before it
    joins, a byte of the file to rewrite is written again.
    """
    special = {name: options.pop(name) for name in SPECIAL if name in options}
    return {"prompt": prompt, "sampling": GREEDY | options, **special}


@dataclass(frozen=True)
class Run:
    """What a run left: rounds of outputs as run_engine.py describes them."""

    rounds: list[dict[str, Any]]
    error: dict[str, str] | None
    exit_code: int
    boot_s: float | None
    log: str = field(repr=False)
    # Processes that still lived ten seconds after the program's end.
    left_over: list[int]

    def outputs(self, number: int) -> list[dict[str, Any]]:
        """Returns the outputs of one round, in the order of its requests."""
        outputs: list[dict[str, Any]] = self.rounds[number]["outputs"]
        return outputs

    def samples(self) -> list[dict[str, Any]]:
        """Returns the first sample of every request of every round, in order."""
        return [output["samples"][0] for turn in self.rounds for output in turn["outputs"]]


def run_engine(
    model: Path,
    rounds: Sequence[Sequence[dict[str, Any]]],
    folder: Path,
    *,
    environment: dict[str, str | None] | None = None,
    seconds: float = 240,
    fails: bool = False,
    **llm: Any,
) -> Run:
    """Boots `LLM(model, **llm)` and runs the rounds, one after the other.

    The requests of a round run together. `environment` changes the process's environment, `None`
    removes a name. Unless it `fails`, a run that ends with an error fails the test with its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    description, target, log = (folder / name for name in ("run.json", "result.json", "log.txt"))
    target.unlink(missing_ok=True)
    content = {
        "llm": LLM | {"model": str(model)} | llm,
        "rounds": [list(requests) for requests in rounds],
    }
    description.write_text(json.dumps(content), encoding="utf-8")
    words = [sys.executable, PROGRAM, description, target]
    with start_session(words, make_environment(folder, environment), log) as process:
        try:
            exit_code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {seconds} s:\n{log.read_text()}") from None
        left_over = wait_for_session(process.pid)
    text = log.read_text(encoding="utf-8", errors="replace")
    result = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    if not fails:
        assert exit_code == 0, text
    return Run(
        rounds=result.get("rounds", []),
        error=result.get("error"),
        exit_code=exit_code,
        boot_s=result.get("boot_s"),
        log=text,
        left_over=left_over,
    )
