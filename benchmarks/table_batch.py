"""The geometry and the tokens that the CPU benchmarks share."""

from __future__ import annotations

import dataclasses

import torch

from gramary.model.hashing import HashSpec

# The real geometry but for the size of its heads: 2 million rows in all, and 16 thousand.
SPEC = HashSpec(
    vocab_size=248320,
    eos_token_id=248044,
    ngram_size=3,
    heads_per_ngram=8,
    row_dim=160,
    ngram_vocab_size_base=125_000,
    rows_multiple=128,
)
SMALL_SPEC = dataclasses.replace(SPEC, ngram_vocab_size_base=1000)


def make_tokens(num_tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns one request of uniform random tokens: token_ids int64 [T], query_start_loc."""
    generator = torch.Generator().manual_seed(seed)
    token_ids = torch.randint(SPEC.vocab_size, (num_tokens,), generator=generator)
    return token_ids, torch.tensor([0, num_tokens], dtype=torch.int32)


def require_equal(name: str, got: torch.Tensor, expected: torch.Tensor) -> int:
    """Returns how many values were compared; raises where one differs in a bit.

    Raises:
        AssertionError: shapes or bits differ.
    """
    if got.shape != expected.shape or not torch.equal(got, expected):
        raise AssertionError(f"{name}: differs from the reference")
    return expected.numel()
