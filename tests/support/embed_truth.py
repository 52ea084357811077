"""The obvious way from tokens to rows, in Python integers and one row at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from gramary.model.codecs import Codec, decode_rows_ref


def wrap_int64(value: int) -> int:
    """Returns `value` as two's complement int64 arithmetic leaves it."""
    return (value + 2**63) % 2**64 - 2**63


def ngram_ids(
    spec: Any, tokens: Sequence[int], query_start_loc: Sequence[int], history: Any = None
) -> list[list[int]]:
    """Returns the row ids of a batch: -1 for padding, -2 for n-grams with a wrong token."""
    eos, n = spec.eos_token_id, spec.ngram_size
    ids = [[-1] * len(spec.sizes) for _ in tokens]
    for request, (start, end) in enumerate(itertools.pairwise(query_start_loc)):
        before = [eos] * (n - 1) if history is None else list(history[request])
        stream = before + list(tokens[start:end])
        for i in range(start, end):
            gram = list(reversed(stream[i - start : i - start + n]))
            # The first EOS among the predecessors hides what lies behind it.
            if eos in gram[1:]:
                first = 1 + gram[1:].index(eos)
                gram[first:] = [eos] * (n - first)
            ids[i] = [_row_id(spec, gram, head) for head in range(len(spec.sizes))]
    return ids


def _row_id(spec: Any, gram: Sequence[int], head: int) -> int:
    used = gram[: head // spec.heads_per_ngram + 2]
    if any(not 0 <= token < spec.vocab_size for token in used):
        return -2
    mixed = 0
    for token, multiplier in zip(used, spec.multipliers, strict=False):
        mixed ^= wrap_int64(token * multiplier)
    return mixed % spec.sizes[head] + spec.offsets[head]


def rows_of(
    codec: Codec, table: torch.Tensor, row_ids: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Returns [n, row_dim] (uint8: row_bytes): zeros for -1, NaN (0xFF) for other wrong ids."""
    encoded = torch.zeros(len(row_ids), codec.row_bytes, dtype=torch.uint8)
    for i, row_id in enumerate(row_ids):
        if 0 <= row_id < table.shape[0]:
            encoded[i] = table[row_id]
        elif row_id != -1:
            encoded[i] = 0xFF
    return decode_rows_ref(codec, encoded, dtype)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Raises naming the first coordinate whose bits differ; any NaN equals any NaN."""
    actual = actual.cpu()
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    same = _bits(actual) == _bits(expected)
    if actual.is_floating_point():
        same |= actual.isnan() & expected.isnan()
    if not same.all():
        first = tuple((~same).nonzero()[0].tolist())
        raise AssertionError(
            f"{int((~same).sum())} of {same.numel()} differ, first at {first}: "
            f"expected {expected[first]}, got {actual[first]}"
        )


def _bits(values: torch.Tensor) -> torch.Tensor:
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(width[values.element_size()])
