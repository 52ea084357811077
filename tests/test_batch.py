"""Batch: what it refuses, which batches are prompt-only, chunks of prompts."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gramary import HashSpec, ngram_ids
from gramary.batch import Batch
from gramary.errors import ArgumentError

SPEC = HashSpec.from_config(
    {
        "vocab_size": 64,
        "hidden_size": 64,
        "ngram_size": 3,
        "heads_per_ngram": 2,
        "ple_layer_ids": [1],
        "num_hidden_layers": 1,
        "ngram_vocab_size_base": 50,
        "make_ngram_vocab_size_divisible_by": 8,
        "eos_token_id": 3,
    }
)
TOKENS = torch.arange(6)
STARTS = torch.tensor([0, 2, 2, 6], dtype=torch.int32)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"token_ids": [1, 2]}, "token_ids"),
        ({"token_ids": TOKENS.to(torch.int16)}, "token_ids"),
        ({"token_ids": TOKENS.view(2, 3)}, "token_ids"),
        ({"query_start_loc": STARTS.long()}, "query_start_loc"),
        ({"query_start_loc": STARTS[:0]}, "query_start_loc"),
        ({"query_start_loc": STARTS + 1}, "begin with 0"),
        ({"query_start_loc": STARTS.flip(0) - STARTS.flip(0)[0]}, "never fall"),
        ({"num_padding": 1}, "num_padding"),
        ({"num_padding": -1}, "num_padding"),
        ({"history": torch.zeros(2, 2, dtype=torch.int64)}, "history"),
        ({"history": torch.zeros(3, 2)}, "history"),
        ({"is_prefill": [True]}, "is_prefill"),
        ({"num_drafts": [0, 1]}, "num_drafts"),
        ({"num_drafts": -1}, "num_drafts"),
        ({"num_drafts": [0, -1, 0]}, "num_drafts"),
        ({"token_ids": TOKENS.to_sparse()}, "token_ids"),
        ({"query_start_loc": STARTS.to_sparse()}, "query_start_loc"),
        ({"history": torch.zeros(3, 2, dtype=torch.int64).to_sparse()}, "history"),
        *[
            ({name: value}, f"{name}: expected")
            for name in ("is_prefill", "num_drafts", "num_padding")
            for value in ("x", 1.0, float("nan"), {}, object(), 1j, [[0]])
        ],
        *[
            ({name: value}, f"{name}: expected")
            for name in ("is_prefill", "num_drafts")
            for value in (
                ["x"] * 3,
                [None] * 3,
                [0.5] * 3,
                [2**70] * 3,
                iter([0]),
                torch.ones(3, 1),
            )
        ],
        ({"is_prefill": 2}, "is_prefill"),
        ({"num_drafts": 2**70}, "num_drafts"),
        ({"num_padding": None}, "num_padding"),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], named: str) -> None:
    arguments = {"token_ids": TOKENS, "query_start_loc": STARTS, **changes}
    first = (arguments.pop("token_ids"), arguments.pop("query_start_loc"))
    with pytest.raises(ArgumentError, match=named):
        Batch(*first, **arguments)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"is_prefill": True}, None),
        ({"is_prefill": [True, True, True], "num_drafts": 0}, None),
        ({"is_prefill": torch.tensor([True, True, True]), "num_drafts": [0, 0, 0]}, None),
        ({"is_prefill": torch.tensor(True), "num_drafts": torch.tensor(0)}, None),
        ({"is_prefill": np.True_, "num_drafts": np.zeros(3, np.int32)}, None),
        ({}, "prefill unknown"),
        ({"is_prefill": [True, False, True]}, "decode"),
        ({"is_prefill": True, "num_drafts": [0, 2, 0]}, "drafts"),
    ],
)
def test_which_batches_are_prompt_only(facts: dict[str, Any], reason: str | None) -> None:
    batch = Batch(TOKENS, STARTS, **facts)
    assert batch.why_not_prompt_only() == reason
    padded = Batch(torch.cat([TOKENS, TOKENS]), STARTS, num_padding=6, **facts)
    assert padded.why_not_prompt_only() == "padding"
    assert (padded.num_tokens, padded.num_requests) == (12, 3)


def test_an_empty_batch_is_legal() -> None:
    batch = Batch.from_prompts(SPEC, [], [], [])
    assert (batch.num_tokens, batch.num_requests) == (0, 0)
    assert batch.why_not_prompt_only() is None


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 4), (3, 1), (1, -1)])
def test_a_chunk_stays_inside_its_prompt(start: int, length: int) -> None:
    with pytest.raises(ArgumentError, match="chunk of the prompt's 3 tokens"):
        Batch.from_prompts(SPEC, [[1, 2, 4]], [start], [length])


@pytest.mark.parametrize("wrong", ["0", 0.0, None, True, [0], torch.zeros(2)])
@pytest.mark.parametrize("name", ["starts", "lengths"])
def test_a_start_and_a_length_are_integers(name: str, wrong: Any) -> None:
    arguments = {"starts": [0, 0], "lengths": [1, 1], name: [0, wrong]}
    with pytest.raises(ArgumentError, match=rf"^{name}\[1\]: expected an integer"):
        Batch.from_prompts(SPEC, [[1], [1]], **arguments)
    arguments[name] = torch.tensor([0, 1])  # type: ignore[assignment]
    assert Batch.from_prompts(SPEC, [[1], [1, 2]], **arguments).num_requests == 2


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("wrong", [None, 5, iter([])])
def test_what_is_no_sequence_of_prompts_is_named(position: int, wrong: Any) -> None:
    arguments: list[Any] = [SPEC, [[1]], [0], [1]]
    arguments[position] = wrong
    name = ("spec", "prompts", "starts", "lengths")[position]
    with pytest.raises(ArgumentError, match=rf"^{name}: expected"):
        Batch.from_prompts(*arguments)


@pytest.mark.parametrize(
    "prompt",
    [
        torch.ones(1, dtype=torch.int64).to_sparse(),
        "abc",
        5,
        None,
        [1.5],
        [[1]],
        [2**70],
        ["a"],
        [True],
    ],
)
def test_a_prompt_is_token_ids(prompt: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^prompts\[1\]: expected the token ids of one prompt"):
        Batch.from_prompts(SPEC, [[1], prompt], [0, 0], [1, 1])
    assert Batch.from_prompts(SPEC, [[]], [0], [0]).num_tokens == 0


@pytest.mark.behaviour(22, 23)
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_chunks_of_prompts_hash_as_whole_prompts(data: st.DataObject) -> None:
    """Behaviours 22, 23: early requests built from prompts name the rows of the whole prompt."""
    prompts = data.draw(st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=12), max_size=4))
    whole = [
        ngram_ids(SPEC, torch.tensor(prompt), torch.tensor([0, len(prompt)], dtype=torch.int32))
        for prompt in prompts
    ]
    starts = [data.draw(st.integers(0, len(prompt))) for prompt in prompts]
    lengths = [
        data.draw(st.integers(0, len(prompt) - start))
        for prompt, start in zip(prompts, starts, strict=True)
    ]
    batch = Batch.from_prompts(SPEC, prompts, starts, lengths)
    got = ngram_ids(SPEC, batch.token_ids, batch.query_start_loc, batch.history)
    expected = [
        ids[start : start + length]
        for ids, start, length in zip(whole, starts, lengths, strict=True)
    ]
    assert torch.equal(got, torch.cat([got[:0], *expected]))
