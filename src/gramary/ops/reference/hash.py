"""The hash in Python integers, one token at a time."""

from __future__ import annotations

import itertools

import torch

from gramary.errors import ArgumentError, TokenError
from gramary.model.hashing import HashSpec


def ngram_ids_ref(
    spec: HashSpec,
    token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    history: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns what `gramary.ngram_ids` must return, whatever the device.

    Args:
        spec: geometry and hash constants.
        token_ids: integers [T].
        query_start_loc: integers [R+1].
        history: integers [R, ngram_size-1], oldest first; None is all EOS.
        out: int64 [T, num_heads] to be overwritten.

    Returns:
        int64 [T, num_heads], `out` if given.

    Raises:
        TokenError: a token or a history token lies outside the vocabulary.
        ArgumentError: query_start_loc does not begin with 0, falls or passes T.
    """
    tokens, starts = token_ids.tolist(), query_start_loc.tolist()
    if starts[0] != 0 or starts != sorted(starts) or starts[-1] > len(tokens):
        raise ArgumentError(f"query_start_loc: wrong bounds {starts}")
    rows = [[-1] * spec.num_heads for _ in tokens]
    for request, (start, end) in enumerate(itertools.pairwise(starts)):
        before = [spec.eos_token_id] * spec.history_length
        if history is not None and start < end:
            before = history[request].tolist()
        stream = before + tokens[start:end]
        for token in stream:
            if not 0 <= token < spec.vocab_size:
                raise TokenError(f"token {token} lies outside the vocabulary")
        for t in range(start, end):
            rows[t] = _rows_of(spec, _ngram(spec, stream, len(before) + t - start))
    if out is None:
        out = torch.empty(len(tokens), spec.num_heads, dtype=torch.int64, device=token_ids.device)
    out.copy_(torch.tensor(rows, dtype=torch.int64, device="cpu").view(out.shape))
    return out


def _ngram(spec: HashSpec, stream: list[int], position: int) -> list[int]:
    """Returns a token and its predecessors, nearest first, EOS for all behind an EOS."""
    ngram = [stream[position]]
    for distance in range(1, spec.ngram_size):
        between = stream[position - distance + 1 : position]
        is_cut = spec.eos_token_id in between
        ngram.append(spec.eos_token_id if is_cut else stream[position - distance])
    return ngram


def _rows_of(spec: HashSpec, ngram: list[int]) -> list[int]:
    """Returns the rows of one n-gram: bigram heads, then trigram heads, and so on."""
    rows = []
    for order in range(2, spec.ngram_size + 1):
        mixed = 0
        for place in range(order):
            mixed ^= ngram[place] * spec.multipliers[place]
        mixed = _wrap_int64(mixed)
        first = (order - 2) * spec.heads_per_ngram
        for head in range(first, first + spec.heads_per_ngram):
            rows.append(mixed % spec.sizes[head] + spec.offsets[head])
    return rows


def _wrap_int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


__all__ = ["ngram_ids_ref"]
