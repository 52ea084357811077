"""Which vLLM this works with, and whether the one at hand is what that version should be."""

from __future__ import annotations

import importlib
import inspect

from gramary.errors import UnsupportedError

SERVING, TESTED_ON_CPU = "0.33", "0.32"

# What is called or overridden, and the parameters it must have.
_SEAMS = (
    ("vllm.v1.worker.gpu.model_states.interface", "ModelState.add_request",
     ("self", "req_index", "new_req_data")),
    ("vllm.v1.worker.gpu.model_states.interface", "ModelState.preprocess_state",
     ("self", "input_batch", "block_tables", "kv_cache_config", "num_computed_tokens")),
    ("vllm.v1.worker.gpu.model_states.interface", "ModelState.prepare_inputs",
     ("self", "input_batch", "req_states")),
    ("vllm.models.qwen4_exp.nvidia.ngram_embedding", "Qwen4ExpNGramEmbedding.forward",
     ("self", "hidden_states", "input_ids", "query_start_loc", "ngram_context")),
    ("vllm.models.qwen4_exp.nvidia.ngram_embedding", "Qwen4ExpNGramEmbedding.start_prefetch",
     ("self", "input_ids", "query_start_loc", "ngram_context")),
)  # fmt: skip


def require_version(version: str, is_cpu: bool) -> None:
    """Raises UnsupportedError for a vLLM that gramary does not serve in.

    Args:
        version: `vllm.__version__`; the distribution may have another name and number.
        is_cpu: whether vLLM runs on its CPU platform.
    """
    found = ".".join(version.split(".")[:2])
    if found == SERVING or (found == TESTED_ON_CPU and is_cpu):
        return
    raise UnsupportedError(
        f"gramary works in vLLM {SERVING}.x, and for tests on the CPU in {TESTED_ON_CPU}.x; this "
        f"is vLLM {version}: install vllm=={SERVING}.0, or remove the option gramary"
    )


def require_seams() -> None:
    """Raises UnsupportedError where this vLLM's classes differ from those of its version."""
    for module, path, expected in _SEAMS:
        try:
            function = importlib.import_module(module)
            for name in path.split("."):
                function = getattr(function, name)
            found = tuple(inspect.signature(function).parameters)  # type: ignore[arg-type]
        except (ImportError, AttributeError) as error:
            raise UnsupportedError(f"this vLLM has no {module}.{path}: {error}") from error
        if found[: len(expected)] != expected:
            raise UnsupportedError(
                f"this vLLM's {module}.{path} takes {', '.join(found)}; gramary was written for "
                f"{', '.join(expected)}"
            )


__all__ = ["require_seams", "require_version"]
