"""The batches in which transformers' `generate` reads a prompt in chunks, foretold."""

from __future__ import annotations

from typing import Any

import torch

from gramary.batch import Batch
from gramary.model.hashing import HashSpec


def chunks_of_generate(
    spec: HashSpec, layer_idx: int, input_ids: torch.Tensor, options: Any, inputs: dict[str, Any]
) -> list[Batch]:
    """Returns the batches of `_prefill` with a `prefill_chunk_size`; copies ids to the host.

    Args:
        spec: geometry of a PLE layer's table.
        layer_idx: the decoder layer of that PLE layer, counted from 0, whose cache holds the
            tokens before.
        input_ids: int64 [B, N], the prompts, with what the cache holds already or without.
        options: the generation configuration.
        inputs: `_prefill`'s `model_kwargs`: with a cache, and ids rather than embeddings.

    Source: `GenerationMixin._prefill` of transformers 5.24 (generation/utils.py).
    """
    cache, mask = inputs["cache"], inputs.get("attention_mask")
    num_before = int(cache.get_seq_length())
    num_known = getattr(options, "_mask_length", -1) if mask is None else mask.shape[1]
    length = input_ids.shape[1]
    if not all(cache.is_linear) and num_known == length:
        input_ids = input_ids[:, -(length - num_before) :]
    is_token = None
    if mask is not None and mask.ndim == 2:
        is_token = mask[:, num_before : num_before + input_ids.shape[1]].bool().cpu()
    # Where Qwen4ExpTextNGramEmbedding.forward keeps the tokens before; forwards overwrite it.
    history = cache.get_conv_state(layer_idx, state_idx=2)
    return chunks_of_prompts(
        spec,
        own_tokens(input_ids),
        options.prefill_chunk_size,
        is_token=is_token,
        history=None if history is None else own_tokens(history),
    )


def own_tokens(token_ids: torch.Tensor) -> torch.Tensor:
    """Returns a copy of token ids as int64 on the host."""
    return token_ids.to("cpu", torch.int64, copy=True)


def chunks_of_prompts(
    spec: HashSpec,
    token_ids: torch.Tensor,
    chunk_size: int,
    *,
    is_token: torch.Tensor | None = None,
    history: torch.Tensor | None = None,
) -> list[Batch]:
    """Returns the prompt-only batches in which transformers reads prompts of one length.

    Args:
        spec: geometry of the table; its EOS stands for padding.
        token_ids: int64 [B, L] on the host.
        chunk_size: most tokens of a prompt in a forward.
        is_token: bool [B, L], False for padding; None is all True.
        history: int64 [B, H], the tokens before, oldest first; None where there are none.

    Returns:
        A batch of B requests for each chunk, in order; none for an empty prompt.

    Source: `_prefill` of transformers 5.24 (generation/utils.py), which splits, and
    `create_recurrent_attention_mask` (masking_utils.py), by which padding becomes EOS in forwards
    of several tokens and not in those of one.
    """
    num_prompts, length = token_ids.shape
    if history is None:
        history = token_ids.new_full((num_prompts, spec.history_length), spec.eos_token_id)
    past, batches = history, []
    for start in range(0, length, chunk_size):
        chunk = token_ids[:, start : start + chunk_size]
        if is_token is not None and chunk.shape[1] > 1:
            chunk = chunk.where(is_token[:, start : start + chunk_size], spec.eos_token_id)
        steps = torch.arange(num_prompts + 1, dtype=torch.int32, device="cpu")
        known = past[:, past.shape[1] - spec.history_length :].contiguous()
        batches.append(
            Batch(chunk.flatten(), steps * chunk.shape[1], history=known, is_prefill=True)
        )
        past = torch.cat([known, chunk], 1)
    return batches


def has_token_outside(batch: Batch, vocab_size: int) -> bool:
    """Returns whether a token of a host batch, or one before it, is no id below `vocab_size`."""
    tensors = (batch.token_ids, batch.history)
    given = [tensor for tensor in tensors if tensor is not None and tensor.numel()]
    bounds = [torch.aminmax(tensor) for tensor in given]
    return any(int(low) < 0 or int(high) >= vocab_size for low, high in bounds)


__all__ = ["chunks_of_generate", "chunks_of_prompts", "has_token_outside"]
