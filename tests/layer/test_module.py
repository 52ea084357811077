"""PLELayer against Hugging Face's layer, and against itself in every way of cutting a stream."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ple_stage import assert_same_bits
from transformers import DynamicCache, Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextPLELayer

from gramary import PLELayer
from gramary.errors import ArgumentError, CheckpointError, ConfigError, SlotError
from gramary.layer import PLEGeometry, PLEState
from gramary.model.codecs import Codec
from gramary.table import Table

VOCAB = 60
EOS = 7
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB, "eos_token_id": EOS, "hidden_size": 96, "hc_count": 4,
    "num_hidden_layers": 4, "ngram_size": 3, "heads_per_ngram": 4, "ple_embed_dim": 64,
    "ple_conv_kernel_size": 4, "ngram_vocab_size_base": 50, "ple_layer_ids": [2], "seed": 5,
    "make_ngram_vocab_size_divisible_by": 8, "rms_norm_eps": 1e-6,
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def make_oracle(dtype: torch.dtype, **changes: Any) -> Qwen4ExpTextPLELayer:
    """Hugging Face's layer with random weights."""
    config = Qwen4ExpTextConfig(**CONFIG | changes)
    oracle = Qwen4ExpTextPLELayer(config, layer_idx=1, ple_layer_index=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in oracle.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return oracle.to(dtype).eval()


MakeLayer = Callable[..., PLELayer]


@pytest.fixture
def make_layer(request: pytest.FixtureRequest) -> MakeLayer:
    """`make_layer(oracle, dtype, **changes)`: our layer with its weights and its table's rows."""

    def make(oracle: Qwen4ExpTextPLELayer, dtype: torch.dtype, **changes: Any) -> PLELayer:
        geometry = PLEGeometry.from_config(CONFIG | changes)
        name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
        table = Table.empty(geometry.spec, Codec(name, geometry.spec.row_dim, None))
        request.addfinalizer(table.close)
        table.load_shard(0, oracle.ple_embedding.ngram_embedding.weight.detach())
        table.finish_loading()
        layer = PLELayer(geometry, table=table, dtype=dtype)
        weights = oracle.state_dict()
        layer.load_state_dict({k: v for k, v in weights.items() if "ple_embedding" not in k})
        return layer

    return make


@pytest.fixture(params=DTYPES, ids=str)
def pair(
    request: pytest.FixtureRequest, make_layer: MakeLayer
) -> tuple[Qwen4ExpTextPLELayer, PLELayer]:
    oracle = make_oracle(request.param)
    return oracle, make_layer(oracle, request.param)


@pytest.fixture
def layer(make_layer: MakeLayer) -> PLELayer:
    return make_layer(make_oracle(torch.bfloat16), torch.bfloat16)


def draw(layer: PLELayer, *shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual streams and token ids, EOS among them."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*shape, layer.geometry.channels, generator=generator).to(layer.dtype)
    return hidden, torch.randint(0, VOCAB, shape, generator=generator)


def assert_equals_oracle(got: torch.Tensor, expected: torch.Tensor) -> None:
    """float32 to 1e-5; bfloat16 and float16, whose rounding boundaries are the same, in bits."""
    if got.dtype == torch.float32:
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    else:
        assert_same_bits(got, expected, "contribution")


def test_equals_hugging_face(pair: tuple[Qwen4ExpTextPLELayer, PLELayer]) -> None:
    oracle, layer = pair
    hidden, tokens = draw(layer, 3, 40)
    with torch.no_grad():
        expected = oracle(hidden, tokens, None)
    got = layer(hidden, tokens)
    assert_equals_oracle(got, expected)
    assert expected.abs().mean() > 0.01


def test_decoding_equals_hugging_face(pair: tuple[Qwen4ExpTextPLELayer, PLELayer]) -> None:
    """Step by step, each with its own cache or state, pieces shorter than window and history."""
    oracle, layer = pair
    hidden, tokens = draw(layer, 2, 24)
    cache = DynamicCache(config=Qwen4ExpTextConfig(**CONFIG))
    state = layer.new_state(2)
    begin = 0
    for length in (1, 2, 5, 1, 1, 9, 1, 4):
        piece = slice(begin, begin + length)
        with torch.no_grad():
            expected = oracle(hidden[:, piece], tokens[:, piece], cache)
        got = layer(hidden[:, piece], tokens[:, piece], state=state)
        assert_equals_oracle(got, expected)
        begin += length
    assert state.positions.tolist() == [24, 24]


@pytest.mark.parametrize("changes", [
    {"ngram_size": 2, "ple_conv_kernel_size": 2},
    {"ngram_size": 4, "heads_per_ngram": 1, "ple_embed_dim": 33, "hc_count": 3, "hidden_size": 61},
    {"ple_conv_kernel_size": 8, "hc_count": 8, "hidden_size": 17},
], ids=lambda c: "-".join(map(str, c.values())))  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_geometries(
    make_layer: MakeLayer, dtype: torch.dtype, changes: dict[str, int]
) -> None:
    oracle = make_oracle(dtype, **changes)
    layer = make_layer(oracle, dtype, **changes)
    hidden, tokens = draw(layer, 2, 30)
    with torch.no_grad():
        expected = oracle(hidden, tokens, None)
    assert_equals_oracle(layer(hidden, tokens), expected)


@pytest.mark.behaviour(22)
def test_ragged_chunks_equal_requests_alone(layer: PLELayer) -> None:
    """Behaviour 22: any chunking and any mixture gives each request what it gets alone.

    The projections are those of one batch (a matrix product's last bit may depend on its size),
    so rows are given and everything behind them is compared.
    """
    geometry, lengths = layer.geometry, [17, 5, 0, 30]
    inputs = [draw(layer, length, seed=length) for length in lengths]
    alone = [layer(hidden.unsqueeze(0), tokens.unsqueeze(0))[0] for hidden, tokens in inputs]
    state = layer.new_state(4)
    outs: list[list[torch.Tensor]] = [[] for _ in lengths]
    done = [0] * 4
    for step in range(100):
        sizes = [
            min((3 * step + 5 * i) % 7, n - d)
            for i, (n, d) in enumerate(zip(lengths, done, strict=True))
        ]
        pieces = [slice(d, d + size) for d, size in zip(done, sizes, strict=True)]
        hidden = torch.cat([h[piece] for (h, _), piece in zip(inputs, pieces, strict=True)])
        tokens = torch.cat([t[piece] for (_, t), piece in zip(inputs, pieces, strict=True)])
        bounds = torch.tensor([0, *sizes]).cumsum(0).int()
        padding = step % 3
        hidden = torch.cat([hidden, torch.full((padding, geometry.channels), 2.0).to(layer.dtype)])
        tokens = torch.cat([tokens, torch.full((padding,), EOS)])
        out = layer(hidden, tokens, bounds, state=state)
        assert (out[int(bounds[-1]) :] == 0).all()
        for i, size in enumerate(sizes):
            outs[i].append(out[int(bounds[i]) : int(bounds[i]) + size])
        done = [d + size for d, size in zip(done, sizes, strict=True)]
        if done == lengths:
            break
    assert done == lengths
    assert state.positions.tolist() == lengths
    for got, expected in zip(outs, alone, strict=True):
        torch.testing.assert_close(torch.cat(got), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.behaviour(23)
def test_a_history_ends_at_an_eos(layer: PLELayer) -> None:
    """Behaviour 23: what lies behind an EOS changes no row, with or without a state between."""
    hidden, tokens = draw(layer, 1, 12)
    tokens[0, 5] = EOS
    other = tokens.clone()
    other[0, :5] = (other[0, :5] + 1) % EOS
    for text in (tokens, other):
        state = layer.new_state(1)
        layer(hidden[:, :6], text[:, :6], state=state)
        assert state.history().tolist() == [[int(text[0, 4]), EOS]]
    history = state.history()
    spec = layer.table.spec
    rows = layer.table.embed(tokens[0, 6:], torch.tensor([0, 6], dtype=torch.int32), history)
    fresh = layer.table.embed(
        tokens[0, 6:],
        torch.tensor([0, 6], dtype=torch.int32),
        torch.full((1, spec.history_length), EOS),
    )
    # The first token's bigram sees the EOS in both; its trigram looks behind it in neither.
    assert_same_bits(rows, fresh, "rows")


@pytest.mark.behaviour(24)
def test_rejected_drafts_leave_no_trace(layer: PLELayer) -> None:
    """Behaviour 24: after any accepted and rejected drafts, history and window are those of the
    accepted tokens."""
    hidden, tokens = draw(layer, 1, 30)
    state, straight = layer.new_state(1, max_speculative_tokens=3), layer.new_state(1)
    position = 0
    for num_accepted in (4, 1, 2, 4, 3, 1, 1, 4, 2):
        drafted, wrong = draw(layer, 1, 4, seed=90 + position)
        drafted[:, :num_accepted] = hidden[:, position : position + num_accepted]
        wrong[:, :num_accepted] = tokens[:, position : position + num_accepted]
        rows = layer.table.embed(wrong[0], torch.tensor([0, 4], dtype=torch.int32), state.history())
        out = layer(drafted, wrong, state=state, rows=rows)[:, :num_accepted]
        expected = layer(
            drafted[:, :num_accepted],
            wrong[:, :num_accepted],
            state=straight,
            rows=rows[:num_accepted],
        )
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
        position += num_accepted
        state.rewind([position])
        assert state.history().tolist() == straight.history().tolist()
        assert state.history().tolist() == [
            tokens[0, max(position - 2, 0) : position].tolist()
        ] or (position < 2)


def test_bounds_of_a_rewind(layer: PLELayer) -> None:
    state = layer.new_state(2, max_speculative_tokens=1)
    hidden, tokens = draw(layer, 2, 8)
    layer(hidden, tokens, state=state)
    state.rewind([6, 8])
    for positions, message in (
        ([5, 8], r"positions\[0\]: expected a position from 6 to 6, got 5"),
        ([6, 9], r"positions\[1\]: expected a position from 6 to 8, got 9"),
    ):
        with pytest.raises(SlotError, match=message):
            state.rewind(positions)
    with pytest.raises(ArgumentError, match=r"^positions: expected shape \[2\], got \[1\]"):
        state.rewind([6])
    assert state.positions.tolist() == [6, 8]


def test_a_state_over_an_engines_pool(layer: PLELayer) -> None:
    """Slots, positions and histories that an engine keeps: the layer goes on where they say."""
    hidden, tokens = draw(layer, 1, 20)
    own = layer.new_state(1, max_speculative_tokens=2)
    layer(hidden[:, :13], tokens[:, :13], state=own)
    pool = torch.full((5, *own.conv_state.shape[1:]), float("nan"), dtype=layer.dtype)
    pool[3] = own.conv_state[0]
    slots, positions = torch.tensor([3]), torch.tensor([13])
    state = PLEState(layer.geometry, pool, slots, positions, own.history())
    assert state.history().tolist() == own.history().tolist()
    got = layer(hidden[:, 13:], tokens[:, 13:], state=state)
    assert_same_bits(got, layer(hidden[:, 13:], tokens[:, 13:], state=own), "out")
    with pytest.raises(SlotError, match="expected a position from 17 to 20, got 12"):
        state.rewind([12])
    assert pool[[0, 1, 2, 4]].isnan().all()


@pytest.mark.parametrize(
    ("slots", "positions", "named"),
    [
        ([0, 5], [0, 0], r"slots\[1\]: expected a slot from 0 to 4"),
        ([-1, 1], [0, 0], r"slots\[0\]"),
        ([2**62, 1], [0, 0], r"slots\[0\]"),
        ([3, 3], [0, 0], r"slots\[1\].*that no other request has, got 3"),
        ([3, 4], [0, -1], r"positions\[1\]: expected 0 or more, got -1"),
    ],
)
def test_slots_that_are_not_in_the_pool_are_named(
    layer: PLELayer, slots: list[int], positions: list[int], named: str
) -> None:
    """A request without a slot would get no contribution, and two in one slot each other's."""
    pool = layer.new_state(5).conv_state
    with pytest.raises(SlotError, match=named):
        PLEState(layer.geometry, pool, torch.tensor(slots), torch.tensor(positions))


@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16])
def test_autocast_changes_no_bit(layer: PLELayer, autocast: torch.dtype) -> None:
    tokens = torch.arange(12).view(2, 6)
    hidden = torch.randn(2, 6, layer.geometry.channels).to(layer.dtype)
    expected = layer(hidden, tokens)
    with torch.autocast("cpu", autocast):
        assert_same_bits(layer(hidden, tokens), expected, "out")


def test_sum_with_the_residual(layer: PLELayer) -> None:
    hidden, tokens = draw(layer, 2, 9)
    before = hidden.clone()
    contribution = layer(hidden, tokens)
    assert_same_bits(layer(hidden, tokens, add_residual=True), hidden + contribution, "sum")
    assert_same_bits(hidden, before, "hidden_states")


def test_empty_batches(layer: PLELayer) -> None:
    hidden, tokens = draw(layer, 4)
    none = torch.zeros(1, dtype=torch.int32)
    assert layer(hidden[:0], tokens[:0], none).shape == (0, layer.geometry.channels)
    assert (layer(hidden, tokens, none) == 0).all()
    assert_same_bits(layer(hidden, tokens, none, add_residual=True), hidden, "out")
    assert layer(hidden.view(2, 2, -1)[:, :0], tokens.view(2, 2)[:, :0]).shape[:2] == (2, 0)
    state = layer.new_state(2)
    empty = torch.zeros(3, dtype=torch.int32)
    assert (layer(hidden, tokens, empty, state=state) == 0).all()
    assert state.positions.tolist() == [0, 0]


def test_refusals(layer: PLELayer) -> None:
    hidden, tokens = draw(layer, 2, 6)
    for arguments, message in (
        ((hidden[0], tokens[0]), r"token_ids: expected shape \[B, T\] without query_start_loc"),
        ((hidden, tokens, torch.zeros(2, dtype=torch.int32)), r"token_ids: expected shape \[T\]"),
        ((hidden[:, 1:], tokens), r"hidden_states: expected torch\.bfloat16 \[2, 6, 384\]"),
        ((hidden.float(), tokens), r"hidden_states: expected torch\.bfloat16 .*got torch\.float32"),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            layer(*arguments)
    for rows in (torch.zeros(11, 64).bfloat16(), torch.zeros(12, 64), torch.zeros(12, 64, 1)):
        with pytest.raises(ArgumentError, match=r"^rows: expected torch\.bfloat16 \[12, 64\] on"):
            layer(hidden, tokens, rows=rows)
    with pytest.raises(ArgumentError, match=r"^token_ids: expected one on cpu, got meta"):
        layer(hidden, tokens.to("meta"))
    with pytest.raises(ArgumentError, match=r"^query_start_loc: expected bounds that begin with 0"):
        layer(hidden[0], tokens[0], torch.tensor([1, 6], dtype=torch.int32))
    with pytest.raises(ArgumentError, match=r"^state: expected one of 2 requests, got 3"):
        layer(hidden, tokens, state=layer.new_state(3))
    bare = PLELayer(layer.geometry)
    with pytest.raises(ArgumentError, match=r"^rows: expected the tokens' rows"):
        bare(hidden, tokens)
    for arguments, options, message in (
        ((None, tokens), {}, "hidden_states: expected a Tensor, got None"),
        ((hidden, tokens.tolist()), {}, "token_ids: expected a Tensor"),
        ((hidden[0], tokens[0], [0, 6]), {}, "query_start_loc: expected a Tensor"),
        ((hidden, tokens), {"rows": [1]}, "rows: expected a Tensor"),
        ((hidden, tokens), {"state": 2}, "state: expected a PLEState, got 2"),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            layer(*arguments, **options)
    for wrong in (-1, 1.5, None, "1", True):
        with pytest.raises(ArgumentError, match=r"^num_requests: expected an integer of at least"):
            layer.new_state(wrong)
        with pytest.raises(ArgumentError, match=r"^max_speculative_tokens: expected an integer"):
            layer.new_state(1, max_speculative_tokens=wrong)
    with pytest.raises(ArgumentError, match=r"^table: expected a Table, got 5"):
        PLELayer(layer.geometry, table=5)
    with pytest.raises(ArgumentError, match=r"^dtype: expected bfloat16, float16 or float32, got"):
        PLELayer(layer.geometry, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"^table: expected one of HashSpec"):
        PLELayer(CONFIG | {"seed": 6}, table=layer.table)


@pytest.mark.parametrize(("field", "value"), [
    ("hc_count", 9), ("hidden_size", 16384), ("ple_conv_kernel_size", 1), ("rms_norm_eps", -1.0),
    ("rms_norm_eps", "small"), ("hc_count", None),
])  # fmt: skip
def test_configurations_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: expected"):
        PLELayer(CONFIG | {field: value})


@pytest.mark.parametrize("conditional", [False, True], ids=["text", "conditional"])
def test_from_checkpoint(make_checkpoint: Callable[..., Path], conditional: bool) -> None:
    """A model's folder gives the layer that transformers loads from it."""
    from transformers import Qwen4ExpForCausalLM, Qwen4ExpForConditionalGeneration

    path = make_checkpoint(codec="bf16", conditional=conditional)
    kind = Qwen4ExpForConditionalGeneration if conditional else Qwen4ExpForCausalLM
    model = kind.from_pretrained(path, dtype=torch.bfloat16)
    text = model.model.language_model if conditional else model.model
    oracle = text.layers[1].ple.eval()
    layer = PLELayer.from_checkpoint(path, placement="disk")
    hidden = torch.randn(2, 12, layer.geometry.channels).bfloat16()
    tokens = torch.randint(0, 256, (2, 12))
    with torch.no_grad():
        expected = oracle(hidden, tokens, None)
    assert_same_bits(layer(hidden, tokens), expected, "contribution")
    with pytest.raises(ArgumentError, match=r"^placement: expected no options for Table\.open"):
        PLELayer.from_checkpoint(path, table=layer.table, placement="host")
    again = PLELayer.from_checkpoint(path, table=layer.table)
    assert again.table is layer.table
    layer.table.close()


def test_a_folder_without_the_layers_weights(copy_checkpoint: Callable[..., Path]) -> None:
    from safetensors.torch import load_file, save_file

    path = copy_checkpoint(codec="bf16")
    for spoil, message in (
        (lambda _: None, "found none; decoder layer 1 has no complete PLE layer"),
        (lambda tensor: tensor.to(torch.float8_e4m3fn), r"dequantise it and use load_state"),
    ):
        file = path / "model.safetensors"
        tensors = load_file(file)
        name = next(name for name in tensors if name.endswith("ple.key_proj.weight"))
        spoiled = spoil(tensors[name])
        changed = {k: v for k, v in tensors.items() if k != name}
        save_file(changed | ({} if spoiled is None else {name: spoiled}), file)
        with pytest.raises(CheckpointError, match=message):
            PLELayer.from_checkpoint(path)
        save_file(tensors, file)
