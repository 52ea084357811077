"""ngram_ids: golden rows, every instruction set against the reference, an independent oracle."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gramary
from gramary import HashSpec
from gramary.errors import ArgumentError, TokenError
from gramary.flat_batch import FlatBatch
from gramary.native import _core
from gramary.native.hash import NgramHasher
from gramary.ops.reference.hash import ngram_ids_ref

REAL = HashSpec(
    vocab_size=248320,
    eos_token_id=248044,
    ngram_size=3,
    heads_per_ngram=8,
    row_dim=160,
    ngram_vocab_size_base=20000000,
    rows_multiple=128,
)

GOLDEN = {
    101: "14526383 36975477 51939184 65076202 94510971 111786935 138448715 155393638 167579692 "
    "181767276 211184823 226303266 246271192 267465224 281469089 313531602",
    202: "9383917 37604839 51720000 75486496 84434064 114084336 138560629 157864067 167911082 "
    "194568541 204150554 222298387 249396999 276854645 299420419 312846864",
    303: "493037 28958551 43196368 71134995 92230508 105930112 126480532 153882988 168741164 "
    "195613863 210304005 226593416 250041074 273489806 281306288 300390317",
    248044: "8565398 22496391 43869359 70727859 81190281 105618070 133141218 144817438 179134126 "
    "194339243 200757996 225107467 253813744 263577356 293733770 306277193",
    404: "9862760 29342765 52817399 65864613 89503380 118179748 121941096 141683854 165682915 "
    "182210947 207699109 237345481 258497743 260877296 288610125 309319054",
    505: "9342575 30591173 41226952 72129935 92915859 113180325 123579259 144115482 165593977 "
    "192230197 205112562 229784054 246854900 264283148 290172147 300211846",
}


def starts_of(*lengths: int) -> torch.Tensor:
    """Returns the query_start_loc of requests of these lengths."""
    return torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0)], dtype=torch.int32)


def ngram_ids(spec: HashSpec, *batch: Any) -> torch.Tensor:
    """Returns `gramary.ngram_ids` into a buffer that held a sentinel."""
    out = torch.full((batch[0].numel(), spec.num_heads), -12345, dtype=torch.int64)
    result = gramary.ngram_ids(spec, *batch, out=out)
    assert result is out
    assert torch.equal(gramary.ngram_ids(spec, *batch), out)
    return out


def assert_equal_ids(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Demands equal bits and names the first coordinate that differs."""
    assert got.shape == expected.shape
    wrong = (got != expected).nonzero()
    if len(wrong):
        token, head = wrong[0].tolist()
        pytest.fail(
            f"{len(wrong)} ids differ, first at token {token}, head {head}: "
            f"{got[token, head]} is not {expected[token, head]}"
        )


@pytest.mark.usefixtures("simd_level")
def test_golden_rows() -> None:
    tokens = torch.tensor(list(GOLDEN))
    expected = torch.tensor([[int(row) for row in rows.split()] for rows in GOLDEN.values()])
    for dtype in (torch.int32, torch.int64):
        assert_equal_ids(ngram_ids(REAL, tokens.to(dtype), starts_of(6)), expected)
    assert_equal_ids(ngram_ids_ref(REAL, tokens, starts_of(6)), expected)


@st.composite
def specs(draw: st.DrawFn) -> HashSpec:
    """Geometries with sizes on both sides of every kernel's range."""
    vocab_size = draw(st.sampled_from([1, 2, 5, 251, 248320, 2**31 - 1]))
    base = draw(st.sampled_from([1, 7, 16300, 16384, 125000, 20000000, 2**31 - 100, 2**31, 2**33]))
    return HashSpec(
        vocab_size=vocab_size,
        eos_token_id=draw(st.integers(0, vocab_size - 1)),
        ngram_size=draw(st.integers(2, 5)),
        heads_per_ngram=draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16, 17])),
        row_dim=16,
        ngram_vocab_size_base=base,
        rows_multiple=draw(st.sampled_from([1, 128])),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        table_index=draw(st.integers(0, 2)),
    )


@st.composite
def batches(draw: st.DrawFn, spec: HashSpec) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Ragged batches with EOS anywhere, empty requests, histories and padding."""
    token = st.one_of(st.just(spec.eos_token_id), st.integers(0, spec.vocab_size - 1))
    lengths = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 5, 9, 33]), max_size=5))
    num_padding = draw(st.sampled_from([0, 0, 1, 4]))
    tokens = draw(st.lists(token, min_size=sum(lengths), max_size=sum(lengths)))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    token_ids = torch.tensor(tokens + [-7] * num_padding, dtype=dtype)
    if draw(st.booleans()):
        return token_ids, starts_of(*lengths), None
    size = len(lengths) * spec.history_length
    history = torch.tensor(draw(st.lists(token, min_size=size, max_size=size)),
                           dtype=draw(st.sampled_from([torch.int32, torch.int64])))  # fmt: skip
    return token_ids, starts_of(*lengths), history.view(len(lengths), spec.history_length)


@pytest.mark.parametrize("level", [0, 1, 2])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_equals_the_reference(level: int, data: st.DataObject) -> None:
    spec = data.draw(specs())
    batch = data.draw(batches(spec))
    _core.set_simd_level(level)
    try:
        got = ngram_ids(spec, *batch)
    finally:
        _core.set_simd_level(_core.detected_simd_level())
    assert_equal_ids(got, ngram_ids_ref(spec, *batch))


EDGES = [0, 1, -1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1, 2**53 + 1, -(2**53) - 1]
SIZES = [2, 3, 16381, 16411, 125003, 20000003, 2**31 - 1, 2147483659, 2**40 - 87]


@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.one_of(
            st.sampled_from(EDGES),
            st.integers(-(2**63), 2**63 - 1),
            # Next to a multiple of the size, where a quotient that is off by one shows.
            st.tuples(st.integers(0, 2**63 - 1), st.integers(-1, 1)),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_floor_mod_of_every_int64(size: int, values: list[Any]) -> None:
    # With token 1 and multipliers (value, 0) the hash is floor_mod(value, size).
    batch = FlatBatch(torch.tensor([1]), starts_of(1))
    for value in values:
        if isinstance(value, tuple):
            multiple, step = value
            value = min(multiple // size * size + step, 2**63 - 1)
        for level in range(_core.detected_simd_level() + 1):
            _core.set_simd_level(level)
            out = torch.full((1, 1), -12345)
            NgramHasher(2, 0, (value, 0), (size,), (0,)).ngram_ids(batch, out)
            assert int(out) == value % size, (value, size, level)


def hugging_face_ids(spec: HashSpec, token_ids: torch.Tensor) -> torch.Tensor:
    """Returns the ids that Hugging Face's module looks up for sequences [B, T]."""
    from transformers.models.qwen4_exp import configuration_qwen4_exp as configuration
    from transformers.models.qwen4_exp import modeling_qwen4_exp as modeling

    config = configuration.Qwen4ExpTextConfig(
        vocab_size=spec.vocab_size,
        eos_token_id=spec.eos_token_id,
        ngram_size=spec.ngram_size,
        heads_per_ngram=spec.heads_per_ngram,
        ple_embed_dim=spec.embed_dim,
        ngram_vocab_size_base=spec.ngram_vocab_size_base,
        make_ngram_vocab_size_divisible_by=spec.rows_multiple,
        seed=spec.seed,
    )

    class Recorder(torch.nn.Module):
        """Stands for the embedding and gives back the ids it is asked for."""

        weight = torch.empty(0)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return ids.unsqueeze(-1)

    module = modeling.Qwen4ExpTextNGramEmbedding(config, spec.embed_dim, 0, spec.table_index)
    assert tuple(module.layer_multipliers.tolist()) == spec.multipliers
    assert tuple(module.head_vocab_sizes) == spec.sizes
    assert tuple(module.head_offsets) == spec.offsets
    assert module.ngram_embedding.num_embeddings == spec.num_rows
    module.ngram_embedding = Recorder()
    return module(token_ids, None)


@pytest.mark.needs("transformers")
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_hugging_face_is_the_oracle(data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from([3, 40, 248320]))
    spec = HashSpec(
        vocab_size=vocab_size,
        eos_token_id=data.draw(st.integers(0, vocab_size - 1)),
        ngram_size=data.draw(st.integers(2, 5)),
        heads_per_ngram=data.draw(st.sampled_from([1, 3, 8])),
        row_dim=1,
        ngram_vocab_size_base=data.draw(st.sampled_from([2, 100, 16384])),
        rows_multiple=data.draw(st.sampled_from([1, 128])),
        seed=data.draw(st.integers(0, 2**40)),
        table_index=data.draw(st.integers(0, 2)),
    )
    B, T = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 24))
    tokens = torch.randint(vocab_size, (B, T), generator=torch.Generator().manual_seed(T))
    tokens[torch.rand(B, T, generator=torch.Generator().manual_seed(B)) < 0.2] = spec.eos_token_id
    expected = hugging_face_ids(spec, tokens)
    got = ngram_ids(spec, tokens.flatten(), starts_of(*[T] * B))
    assert_equal_ids(got, expected.flatten(0, 1))
    # The same sequences cut anywhere, each piece with the history before it.
    cuts = sorted(data.draw(st.sets(st.integers(1, T), max_size=4)) | {0, T})
    eos = torch.full((B, spec.history_length), spec.eos_token_id)
    stream = torch.cat([eos, tokens], dim=1)
    for start, end in itertools.pairwise(cuts):
        piece = tokens[:, start:end].flatten()
        history = stream[:, start : start + spec.history_length]
        got = ngram_ids(spec, piece, starts_of(*[end - start] * B), history)
        assert_equal_ids(got, expected[:, start:end].flatten(0, 1))


@pytest.mark.behaviour(22)
@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("num_tokens", [1, 63, 129, 5000])
def test_any_chunking_gives_the_same_rows(num_tokens: int) -> None:
    """Behaviour 22: pieces with their histories, and requests in any order, hash as the whole."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(248320, (num_tokens,), generator=generator)
    tokens[::5] = REAL.eos_token_id
    whole = ngram_ids(REAL, tokens, starts_of(num_tokens))
    stream = torch.cat([torch.full((2,), REAL.eos_token_id), tokens])
    cuts = [0, *sorted(torch.randint(num_tokens, (40,), generator=generator).tolist()), num_tokens]
    spans = list(itertools.pairwise(cuts))
    for ordered in (spans, spans[::-1]):
        pieces = torch.cat([tokens[start:end] for start, end in ordered])
        history = torch.stack([stream[start : start + 2] for start, _ in ordered])
        lengths = [end - start for start, end in ordered]
        got = ngram_ids(REAL, pieces, starts_of(*lengths), history)
        assert_equal_ids(got, torch.cat([whole[start:end] for start, end in ordered]))


@pytest.mark.behaviour(23)
@pytest.mark.usefixtures("simd_level")
def test_history_stays_within_its_bounds() -> None:
    """Behaviour 23: nothing crosses an EOS, and requests never see each other's tokens."""
    eos = REAL.eos_token_id
    alone = ngram_ids(REAL, torch.tensor([5, 6]), starts_of(2), torch.tensor([[1, 2]]))
    beside = ngram_ids(REAL, torch.tensor([9, 9, 5, 6, 9]), starts_of(2, 2, 1),
                       torch.tensor([[3, 3], [1, 2], [4, 4]]))  # fmt: skip
    assert_equal_ids(beside[2:4], alone)
    for behind in (0, 7, eos):
        got = ngram_ids(REAL, torch.tensor([5]), starts_of(1), torch.tensor([[behind, eos]]))
        assert_equal_ids(got, ngram_ids(REAL, torch.tensor([5]), starts_of(1)))
    # The token next to the current one counts even if an EOS lies behind it.
    near = ngram_ids(REAL, torch.tensor([5]), starts_of(1), torch.tensor([[eos, 7]]))
    assert not torch.equal(near, ngram_ids(REAL, torch.tensor([5]), starts_of(1)))


@pytest.mark.behaviour(25)
@pytest.mark.usefixtures("simd_level")
def test_padding() -> None:
    """Behaviour 25: tokens from query_start_loc[-1] on are padding, whatever they hold."""
    tokens = torch.tensor([1, 2, 3, -1, 2**40, 248320])
    got = ngram_ids(REAL, tokens, starts_of(3, 0))
    assert bool((got[3:] == -1).all())
    assert_equal_ids(got[:3], ngram_ids(REAL, tokens[:3], starts_of(3)))
    assert bool((ngram_ids(REAL, tokens, starts_of()) == -1).all())


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0)])
def test_empty_batches(lengths: tuple[int, ...]) -> None:
    for history in (None, torch.zeros(len(lengths), 2, dtype=torch.int64)):
        got = ngram_ids(REAL, torch.empty(0, dtype=torch.int64), starts_of(*lengths), history)
        assert got.shape == (0, 16)


def test_views_that_are_not_contiguous() -> None:
    tokens = torch.arange(0, 40)
    history = torch.arange(12).view(2, 6).t()[:4:2]
    starts = torch.tensor([0, 9, 4, 9, 20, 9], dtype=torch.int32)[::2]
    got = ngram_ids(REAL, tokens[::2], starts, history)
    expected = ngram_ids_ref(REAL, tokens[::2], starts, history)
    assert_equal_ids(got, expected)
    negated = [torch._neg_view(-tensor) for tensor in (tokens[::2], starts, history)]
    assert_equal_ids(ngram_ids(REAL, *negated), expected)


@pytest.mark.parametrize("num_tokens", [3, 20000])
@pytest.mark.parametrize(
    ("wrong", "dtype"),
    [(-1, torch.int32), (-1, torch.int64), (248320, torch.int32), (2**40, torch.int64)],
)
def test_the_first_wrong_token_is_named(num_tokens: int, wrong: int, dtype: torch.dtype) -> None:
    tokens = torch.ones(num_tokens, dtype=dtype)
    first = num_tokens * 2 // 3
    tokens[first:] = wrong
    message = f"token_ids: expected token ids from 0 to 248319, got {wrong} at index {first}"
    with pytest.raises(TokenError, match=message):
        gramary.ngram_ids(REAL, tokens, starts_of(num_tokens))


def test_wrong_history_tokens() -> None:
    history = torch.tensor([[-9, -9], [1, 2], [1, -3]])
    tokens = torch.tensor([1, 2, 3])
    message = r"history: expected token ids .* got -3 at index \[2, 1\]"
    with pytest.raises(TokenError, match=message):
        gramary.ngram_ids(REAL, tokens, starts_of(0, 2, 1), history)
    # The history of an empty request is not read.
    assert ngram_ids(REAL, tokens, starts_of(0, 3, 0), history).shape == (3, 16)


@pytest.mark.parametrize(
    ("starts", "index", "value"),
    [([1, 3], 0, 1), ([-1, 3], 0, -1), ([0, 2, 1], 2, 1), ([0, 4], 1, 4), ([0, 4, 3], 1, 4)],
)
def test_wrong_bounds(starts: list[int], index: int, value: int) -> None:
    query_start_loc = torch.tensor(starts, dtype=torch.int32)
    with pytest.raises(ArgumentError, match=f"query_start_loc: .* got {value} at index {index}"):
        gramary.ngram_ids(REAL, torch.tensor([1, 2, 3]), query_start_loc)
    with pytest.raises(ArgumentError, match="query_start_loc"):
        ngram_ids_ref(REAL, torch.tensor([1, 2, 3]), query_start_loc)


TOKENS = torch.tensor([1, 2, 3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token_ids": [1, 2, 3]}, "token_ids: expected a tensor, got list"),
        ({"token_ids": TOKENS.float()}, "token_ids: expected torch.int32 or torch.int64"),
        ({"token_ids": TOKENS.bool()}, "token_ids: expected .* got torch.bool"),
        ({"token_ids": TOKENS[None]}, r"token_ids: expected shape \[T\], got \[1, 3\]"),
        ({"token_ids": TOKENS[0]}, r"token_ids: expected shape \[T\], got \[\]"),
        ({"query_start_loc": [0, 3]}, "query_start_loc: expected a tensor"),
        ({"query_start_loc": torch.tensor([0, 3])}, "query_start_loc: expected torch.int32"),
        ({"query_start_loc": torch.empty(0, dtype=torch.int32)}, "query_start_loc: .* at least"),
        ({"query_start_loc": starts_of(3)[None]}, "query_start_loc: expected shape"),
        ({"history": torch.zeros(1, 3).long()}, r"history: expected shape \[1, 2\]"),
        ({"history": torch.zeros(2, 2).long()}, r"history: expected shape \[1, 2\]"),
        ({"history": torch.zeros(2).long()}, r"history: expected shape \[R, 2\]"),
        ({"history": torch.zeros(1, 2)}, "history: expected torch.int32 or torch.int64"),
        ({"history": torch.zeros(1, 2, device="meta").long()}, "history: expected a tensor on cpu"),
        ({"out": 3}, "out: expected a tensor, got int"),
        ({"out": torch.zeros(3, 16)}, "out: expected torch.int64"),
        ({"out": torch.zeros(2, 16).long()}, r"out: expected torch.int64 \[3, 16\]"),
        ({"out": torch.zeros(16, 3).long().t()}, "out: expected a contiguous tensor"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    arguments = {"token_ids": TOKENS, "query_start_loc": starts_of(3), **arguments}
    with pytest.raises(ArgumentError, match=message):
        gramary.ngram_ids(REAL, **arguments)


def test_other_devices_are_refused() -> None:
    with pytest.raises(gramary.errors.UnsupportedError, match="CPU or a CUDA device, got meta"):
        gramary.ngram_ids(REAL, TOKENS.to("meta"), starts_of(3).to("meta"))
