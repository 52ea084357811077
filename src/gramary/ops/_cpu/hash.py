"""CPU backend of `gramary.ops.hash`."""

from __future__ import annotations

import functools

import torch

from gramary.errors import ArgumentError, TokenError
from gramary.model.hashing import HashSpec
from gramary.native.hash import BatchFault, Fault, NgramHasher


def ngram_ids(
    spec: HashSpec,
    token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    history: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Writes the row ids of a checked batch, its tensors contiguous, into `out`.

    Raises:
        TokenError: a token or a history token lies outside the vocabulary.
        ArgumentError: query_start_loc does not begin with 0, falls or passes T.
    """
    fault = hasher(spec).ngram_ids(token_ids, query_start_loc, history, out)
    if fault is not None:
        raise_fault(fault, spec, token_ids, query_start_loc, history)


@functools.lru_cache(maxsize=64)
def hasher(spec: HashSpec) -> NgramHasher:
    """Returns the native hasher of a geometry, made once."""
    return NgramHasher(
        spec.vocab_size, spec.eos_token_id, spec.multipliers, spec.sizes, spec.offsets
    )


def raise_fault(
    fault: BatchFault,
    spec: HashSpec,
    token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    history: torch.Tensor | None,
) -> None:
    """Raises the error that names the first wrong number of a batch."""
    if fault.kind is Fault.QUERY_START_LOC:
        raise ArgumentError(
            f"query_start_loc: expected bounds that begin with 0, never fall and stay within "
            f"{token_ids.numel()} tokens, got {int(query_start_loc[fault.index])} "
            f"at index {fault.index}"
        )
    vocabulary = f"expected token ids from 0 to {spec.vocab_size - 1}"
    if fault.kind is Fault.TOKEN_IDS:
        value = int(token_ids[fault.index])
        raise TokenError(f"token_ids: {vocabulary}, got {value} at index {fault.index}")
    assert history is not None
    request, place = divmod(fault.index, spec.history_length)
    value = int(history[request, place])
    raise TokenError(f"history: {vocabulary}, got {value} at index [{request}, {place}]")


__all__ = ["hasher", "ngram_ids", "raise_fault"]
