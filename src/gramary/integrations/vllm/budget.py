"""Device memory that `device=auto` leaves to vLLM: its KV cache comes first."""

from __future__ import annotations

from typing import Any

import torch

from gramary.integrations.vllm.options import Options
from gramary.settings import GIB


def kv_bytes(vllm_config: Any, options: Options, device: torch.device) -> int:
    """Returns the device bytes that rows must leave: outside vLLM's share, and for its KV cache.

    The cache needs what was set for it, in the option or by vLLM's `kv_cache_memory_bytes`, else
    one request of the model's greatest length.

    Args:
        vllm_config: the engine's configuration; its layers are built.
        options: how gramary serves it.
        device: of the forwards.
    """
    if device.type != "cuda":
        return 0
    total = torch.cuda.get_device_properties(device).total_memory
    outside = int(total * (1 - vllm_config.cache_config.gpu_memory_utilization))
    return outside + _cache_bytes(vllm_config, options)


def _cache_bytes(vllm_config: Any, options: Options) -> int:
    if options.kv_gib is not None:
        return int(options.kv_gib * GIB)
    if vllm_config.cache_config.kv_cache_memory_bytes is not None:
        return int(vllm_config.cache_config.kv_cache_memory_bytes)
    return sum(
        spec.max_memory_usage_bytes(vllm_config)
        for layer in vllm_config.compilation_config.static_forward_context.values()
        if (spec := _spec_of(layer, vllm_config)) is not None
    )


def _spec_of(layer: Any, vllm_config: Any) -> Any:
    """Returns what a layer keeps for a request; None where it keeps nothing."""
    get_spec = getattr(layer, "get_kv_cache_spec", None)
    return None if get_spec is None else get_spec(vllm_config)


__all__ = ["kv_bytes"]
