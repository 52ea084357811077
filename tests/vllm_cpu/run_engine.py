"""A program: runs one vLLM engine as a JSON file describes, and writes what came out to another.

`run_engine.py DESCRIPTION RESULT`; tests/vllm_cpu/engine.py has the description's words.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Boots the engine and runs the rounds; an error is written too, then raised."""
    description = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    target = Path(sys.argv[2])
    result: dict[str, Any] = {"rounds": [], "error": None}
    try:
        began = time.monotonic()
        from vllm import LLM

        llm = LLM(**description["llm"])
        result["boot_s"] = time.monotonic() - began
        for requests in description["rounds"]:
            result["rounds"].append(run_round(llm, requests))
    except BaseException as error:
        result["error"] = {"type": type(error).__name__, "message": str(error)}
        raise
    finally:
        target.write_text(json.dumps(result), encoding="utf-8")


def run_round(llm: Any, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs requests together: each joins after so many steps, and may be aborted at a token."""
    engine = llm.llm_engine
    began, step = time.monotonic(), 0
    names = [f"{time.monotonic_ns()}-{index}" for index in range(len(requests))]
    waiting = list(range(len(requests)))
    outputs: dict[str, Any] = {}
    aborts = {
        name: request["abort_after_tokens"]
        for name, request in zip(names, requests, strict=True)
        if request.get("abort_after_tokens") is not None
    }
    while waiting or engine.has_unfinished_requests():
        for index in [i for i in waiting if requests[i].get("after_steps", 0) <= step]:
            waiting.remove(index)
            add_request(engine, names[index], requests[index])
        for output in engine.step():
            outputs[output.request_id] = output
            if len(output.outputs[0].token_ids) >= aborts.get(output.request_id, float("inf")):
                engine.abort_request([output.request_id])
                del aborts[output.request_id]
        step += 1
    return {
        "seconds": time.monotonic() - began,
        "steps": step,
        "outputs": [describe_output(outputs[name]) if name in outputs else None for name in names],
    }


def add_request(engine: Any, name: str, request: dict[str, Any]) -> None:
    """Hands one request over: a prompt is a text or a list of token ids."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    if "rewrite" in request:
        with Path(request["rewrite"]).open("r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(first)
    prompt = request["prompt"]
    prompt = {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": prompt}
    sampling = SamplingParams(output_kind=RequestOutputKind.CUMULATIVE, **request["sampling"])
    engine.add_request(name, prompt, sampling)


def describe_output(output: Any) -> dict[str, Any]:
    """Returns what tests compare of a request's last output."""
    return {
        "prompt_token_ids": list(output.prompt_token_ids),
        "num_cached_tokens": output.num_cached_tokens,
        "prompt_logprobs": describe_logprobs(output.prompt_logprobs),
        "samples": [
            {
                "token_ids": list(sample.token_ids),
                "text": sample.text,
                "logprobs": describe_logprobs(sample.logprobs),
                "finish_reason": sample.finish_reason,
            }
            for sample in output.outputs
        ],
    }


def describe_logprobs(positions: Any) -> list[dict[str, float] | None] | None:
    """Returns the log-probability of each listed token, position by position."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else {str(token): entry.logprob for token, entry in position.items()}
        for position in positions
    ]


if __name__ == "__main__":
    main()
