"""vLLM's check of a model's configuration, with what gramary lifts and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gramary.errors import UnsupportedError
from gramary.integrations.vllm.options import chosen


def verify(stock: Callable[[Any], None], vllm_config: Any) -> None:
    """Checks a model's configuration as vLLM does, for an engine with or without gramary.

    With gramary, vLLM's refusal of several pipeline stages is lifted: its reason, that later stages
    do not see the tokens, does not hold for the stage that has the layer, and the runner that
    gramary requires keeps the tokens on all of them. The table is never loaded by vLLM, so its own
    placement of it is off.

    Args:
        stock: vLLM's check.
        vllm_config: the engine's configuration, which the check may change.
    """
    options = chosen(vllm_config.additional_config)
    if options is None:
        stock(vllm_config)
        return
    _refuse_own_placement(vllm_config)
    text_config = vllm_config.model_config.hf_text_config
    layers, text_config.ple_layer_ids = text_config.ple_layer_ids, []
    try:
        stock(vllm_config)
    finally:
        text_config.ple_layer_ids = layers
    if layers:
        from vllm.config.engram import EngramConfig

        # The class without pinned memory, whose weight is then not allocated either.
        vllm_config.engram_config = EngramConfig(cpu_offload=False)


def _refuse_own_placement(vllm_config: Any) -> None:
    engram = vllm_config.engram_config
    if engram is not None and engram.embedding_across_dp:
        raise UnsupportedError(
            "gramary: embedding_across_dp of engram_config splits the table by vLLM's own means; "
            "remove it (gramary shares one copy among the ranks of a machine)"
        )


__all__ = ["verify"]
