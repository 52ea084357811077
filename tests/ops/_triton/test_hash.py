"""n-gram ids on the GPU (or interpreted) against Python integers."""

import embed_truth
import pytest
import torch
import triton
import triton.language as tl
from embed_stage import BIGRAMS, FOURGRAMS, REAL, SMALL, Spec, fresh, on_device, random_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from gramary.flat_batch import FlatBatch
from gramary.ops._triton.hash import HashConstants, floor_mod, ngram_ids
from gramary.ops._triton.sticky_error import error_of, new_error

# Rows per token of the tokens below, as published for the real configuration.
GOLDEN_TOKENS = [101, 202, 303, 248044, 404, 505]
GOLDEN_FIRST_HEADS = [14526383, 9383917, 493037, 8565398, 9862760, 9342575]
GOLDEN_LAST_HEADS = [313531602, 312846864, 300390317, 306277193, 309319054, 300211846]

SPECS = {"bigrams": BIGRAMS, "trigrams": SMALL, "fourgrams": FOURGRAMS, "real": REAL}


def run(spec: Spec, tokens, query_start_loc, history=None, token_dtype=torch.int64):
    """Returns the kernel's ids and its error tensor."""
    constants = HashConstants.of(spec, on_device(0).device)
    if history is not None:
        history = on_device(history, token_dtype).reshape(-1, spec.ngram_size - 1)
    out = fresh((len(tokens), len(spec.sizes)), torch.int64)
    error = new_error(out.device)
    starts = on_device(query_start_loc, torch.int32)
    batch = FlatBatch(on_device(tokens, token_dtype), starts, history)
    ngram_ids(constants, batch, out, error)
    return out, error


def check(spec: Spec, tokens, query_start_loc, history=None, token_dtype=torch.int64) -> None:
    """Raises where the kernel's ids are not the obvious ones."""
    out, error = run(spec, tokens, query_start_loc, history, token_dtype)
    truth = embed_truth.ngram_ids(spec, tokens, query_start_loc, history)
    embed_truth.assert_same(out, torch.tensor(truth, dtype=torch.int64).reshape(out.shape))
    assert error.tolist() == [0, 0, 0, 0]


def test_published_ids_of_the_real_configuration():
    out, _ = run(REAL, GOLDEN_TOKENS, [0, 6])
    assert out[:, 0].tolist() == GOLDEN_FIRST_HEADS
    assert out[:, -1].tolist() == GOLDEN_LAST_HEADS


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("token_dtype", [torch.int32, torch.int64])
def test_ids_equal_the_obvious_ones(name: str, token_dtype: torch.dtype):
    spec = SPECS[name]
    tokens, starts, history = random_batch(spec, [1, 0, 5, 2, 0, 9], num_padding=3)
    check(spec, tokens, starts, history, token_dtype)
    check(spec, tokens, starts, None, token_dtype)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=0, max_size=9),
    num_padding=st.integers(0, 3),
    seed=st.integers(0, 2**16),
)
@pytest.mark.behaviour(22, 23)
def test_any_ragged_batch(lengths: list[int], num_padding: int, seed: int):
    """22, 23: each request is hashed from its own tokens and history, whatever lies beside it."""
    tokens, starts, history = random_batch(SMALL, lengths, seed, num_padding)
    check(SMALL, tokens, starts, history)


@pytest.mark.parametrize("num_requests", [1, 2, 63, 129])
def test_many_requests(num_requests: int):
    lengths = [1 + i % 2 for i in range(num_requests)]
    check(BIGRAMS, *random_batch(BIGRAMS, lengths))


@pytest.mark.behaviour(22)
def test_chunks_of_a_prompt_give_the_ids_of_one_piece():
    """22: with the last tokens as history, any chunking of a prompt gives the same ids."""
    tokens, _, _ = random_batch(SMALL, [12], seed=3)
    whole, _ = run(SMALL, tokens, [0, 12])
    eos = SMALL.eos_token_id
    for cut in (1, 2, 5, 11):
        first, _ = run(SMALL, tokens[:cut], [0, cut])
        history = [([eos, eos, *tokens[:cut]])[-2:]]
        second, _ = run(SMALL, tokens[cut:], [0, 12 - cut], history)
        embed_truth.assert_same(torch.cat([first, second]), whole.cpu())


@pytest.mark.parametrize("wrong", [-1, SMALL.vocab_size, 2**40, -(2**63)])
def test_a_wrong_token_spoils_the_ngrams_that_hash_it_and_no_other(wrong: int):
    tokens = [1, 2, wrong, 3, 4, 6, 7]
    out, error = run(SMALL, tokens, [0, 6, 7])
    truth = embed_truth.ngram_ids(SMALL, tokens, [0, 6, 7])
    embed_truth.assert_same(out, torch.tensor(truth))
    assert [row.count(-2) for row in truth] == [0, 0, 4, 4, 2, 0, 0]
    assert error.tolist()[:3] == [1, 2, wrong]
    message = str(error_of(error, vocab_size=97, num_rows=152))
    assert message.startswith(f"token_ids[2]: expected 0 to 96, got {wrong}")


def test_a_wrong_history_token_counts_only_where_it_is_hashed():
    # Behind an EOS it is never seen; padding tokens may be anything.
    out, error = run(SMALL, [1, 2, 10**9], [0, 1, 2], [[10**9, 5], [7, 8]])
    assert error.tolist() == [0, 0, 0, 0]
    assert (out[:2] >= 0).all()
    out, error = run(SMALL, [1, 2], [0, 1, 2], [[3, 4], [-9, 8]])
    assert (out == -2).tolist() == [[False] * 4, [False, False, True, True]]
    assert error.tolist() == [2, 2, -9, 2]
    assert "history[2]" in str(error_of(error, vocab_size=97, num_rows=152))


def test_the_first_error_stays():
    constants = HashConstants.of(SMALL, on_device(0).device)
    error = new_error(constants.values.device)
    for wrong in (500, 600):
        out = fresh((1, 4), torch.int64)
        starts = on_device([0, 1], torch.int32)
        ngram_ids(constants, FlatBatch(on_device([wrong]), starts), out, error)
    assert error.tolist() == [1, 0, 500, 8]


def test_without_an_error_tensor_nothing_is_reported():
    constants = HashConstants.of(SMALL, on_device(0).device)
    out = fresh((1, 4), torch.int64)
    ngram_ids(constants, FlatBatch(on_device([500]), on_device([0, 1], torch.int32)), out)
    assert (out == -2).all()


def test_no_requests_and_no_tokens():
    out, _ = run(SMALL, [], [0])
    assert out.shape == (0, 4)
    out, _ = run(SMALL, [3, 4], [0])
    assert (out == -1).all()


def test_metadata_that_cannot_be_right_reads_nothing_outside():
    # Starts that fall, lie beyond the batch or below zero: any ids, but no access out of bounds.
    for starts in ([0, 9, 1, 3], [-5, -3, 3, 3], [3, 2, 1, 3], [0, 1, 2, 900]):
        out, _ = run(SMALL, [1, 2, 3], starts, [[1, 2]] * 3)
        assert ((out >= -2) & (out < SMALL.num_rows)).all()


@triton.jit
def _floor_mod_kernel(p_x, p_size, p_reciprocal, p_out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    x = tl.load(p_x + i, mask=m, other=0)
    size = tl.load(p_size + i, mask=m, other=2)
    reciprocal = tl.load(p_reciprocal + i, mask=m, other=0)
    tl.store(p_out + i, floor_mod(x, size, reciprocal), mask=m)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(2, 2**40 + 2**20)), min_size=1)
)
def test_floor_mod_is_exact(pairs: list[tuple[int, int]]):
    edges = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1]
    pairs = pairs + [(x, size) for x in edges for size in (2, 3, 20000003, 2**31 + 11, 2**40 + 15)]
    pairs += [(k * size + d, size) for _, size in pairs[:3] for k in (-9, 7) for d in (-1, 0, 1)]
    xs = on_device([x for x, _ in pairs])
    out = torch.full_like(xs, -77)
    reciprocals = [embed_truth.wrap_int64(2**64 // size) for _, size in pairs]
    _floor_mod_kernel[(triton.cdiv(len(pairs), 64),)](
        xs, on_device([size for _, size in pairs]), on_device(reciprocals), out, len(pairs), B=64
    )
    assert out.tolist() == [x % size for x, size in pairs]
