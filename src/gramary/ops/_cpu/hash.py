"""CPU backend of `gramary.ops.hash`."""

from __future__ import annotations

import functools

import torch

from gramary.errors import ArgumentError, TokenError
from gramary.flat_batch import FlatBatch
from gramary.model.hashing import HashSpec
from gramary.native.hash import BatchFault, Fault, NgramHasher


def ngram_ids(spec: HashSpec, batch: FlatBatch, out: torch.Tensor) -> None:
    """Writes the row ids of a batch into `out` int64 [T, num_heads], contiguous.

    Raises:
        TokenError: a token or a history token lies outside the vocabulary.
        ArgumentError: query_start_loc does not begin with 0, falls or passes T.
    """
    fault = hasher(spec).ngram_ids(batch, out)
    if fault is not None:
        raise_fault(fault, spec, batch)


@functools.lru_cache(maxsize=64)
def hasher(spec: HashSpec) -> NgramHasher:
    """Returns the native hasher of a geometry, made once."""
    return NgramHasher(
        spec.vocab_size, spec.eos_token_id, spec.multipliers, spec.sizes, spec.offsets
    )


def raise_fault(fault: BatchFault, spec: HashSpec, batch: FlatBatch) -> None:
    """Raises the error that names the first wrong number of a batch."""
    if fault.kind is Fault.QUERY_START_LOC:
        raise ArgumentError(
            f"query_start_loc: expected bounds that begin with 0, never fall and stay within "
            f"{batch.token_ids.numel()} tokens, got {int(batch.query_start_loc[fault.index])} "
            f"at index {fault.index}"
        )
    vocabulary = f"expected token ids from 0 to {spec.vocab_size - 1}"
    if fault.kind is Fault.TOKEN_IDS:
        value = int(batch.token_ids[fault.index])
        raise TokenError(f"token_ids: {vocabulary}, got {value} at index {fault.index}")
    assert batch.history is not None
    request, place = divmod(fault.index, spec.history_length)
    value = int(batch.history[request, place])
    raise TokenError(f"history: {vocabulary}, got {value} at index [{request}, {place}]")


__all__ = ["hasher", "ngram_ids", "raise_fault"]
