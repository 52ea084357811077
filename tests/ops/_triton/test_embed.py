"""Tokens and row ids to rows over device and host extents, against one row at a time."""

import embed_truth
import pytest
import torch
from embed_stage import (
    BIGRAMS,
    DEVICE,
    DTYPES,
    FOURGRAMS,
    SMALL,
    TILE,
    Spec,
    extent_of,
    fresh,
    on_device,
    random_batch,
    random_table,
    split_extents,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st

from gramary.errors import ArgumentError
from gramary.flat_batch import FlatBatch
from gramary.model.codecs import Codec
from gramary.native.rows import RowExtent
from gramary.ops._triton.embed import embed, lookup
from gramary.ops._triton.hash import HashConstants
from gramary.ops._triton.sticky_error import error_of, new_error
from gramary.ops._triton.tiles import Tile
from gramary.ops.extents import Extents

# Values beyond float16 become infinite; numpy, under the interpreter, says so.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")

CODECS = {
    "bf16": Codec("bf16", 20),
    "fp16": Codec("fp16", 32),
    "fp32": Codec("fp32", 5),
    "fp8": Codec("fp8", 40, 2.0**-12 * 1.25),
    "nvfp4": Codec("nvfp4", 32, 2.0**-3 * 1.5),
}
ALL = (0, SMALL.num_rows)
NONE = (0, 0)


def width(codec: Codec, dtype: torch.dtype) -> int:
    """Columns of one row of the output."""
    return codec.row_bytes if dtype == torch.uint8 else codec.row_dim


def run_embed(spec: Spec, codec: Codec, extents: Extents, batch, dtype, history=True, tile=None):
    """Returns the kernel's rows, [tokens * heads, width], and its error tensor."""
    tokens, starts, histories = batch
    constants = HashConstants.of(spec, on_device(0).device)
    out = fresh((len(tokens), len(spec.sizes) * width(codec, dtype)), dtype)
    error = new_error(out.device)
    old = on_device(histories).reshape(-1, spec.ngram_size - 1) if history else None
    starts = on_device(starts, torch.int32)
    batch = FlatBatch(on_device(tokens), starts, old)
    result = embed(constants, batch, extents, codec, out, error, tile=tile)
    assert result is out
    return out.view(-1, width(codec, dtype)), error


def expected_ids(spec: Spec, batch, history=True) -> list[int]:
    tokens, starts, histories = batch
    ids = embed_truth.ngram_ids(spec, tokens, starts, histories if history else None)
    return [row_id for row in ids for row_id in row]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("history", [True, False], ids=["history", "fresh"])
def test_embed_equals_hash_gather_decode(name: str, dtype: torch.dtype, history: bool):
    codec = CODECS[name]
    table = random_table(codec, SMALL.num_rows)
    extents, keep = split_extents(table, (0, 70), (70, SMALL.num_rows))
    batch = random_batch(SMALL, [1, 0, 3], num_padding=1)
    out, error = run_embed(SMALL, codec, extents, batch, dtype, history)
    ids = expected_ids(SMALL, batch, history)
    embed_truth.assert_same(out, embed_truth.rows_of(codec, table, ids, dtype))
    assert error.tolist() == [0, 0, 0, 0]
    del keep


@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(0, SMALL.num_rows), min_size=4, max_size=4),
    host_first=st.booleans(),
    lengths=st.lists(st.integers(0, 3), max_size=5),
    name=st.sampled_from(sorted(CODECS)),
    seed=st.integers(0, 99),
)
@pytest.mark.behaviour(11)
def test_any_two_extents(cuts, host_first, lengths, name, seed):
    """11: the same bytes for every split; rows in no extent are zero rows."""
    a, b, c, d = sorted(cuts)
    device, host = ((c, d), (a, b)) if host_first else ((a, b), (c, d))
    codec = CODECS[name]
    table = random_table(codec, SMALL.num_rows, seed)
    extents, keep = split_extents(table, device, host)
    batch = random_batch(SMALL, lengths, seed)
    out, _ = run_embed(SMALL, codec, extents, batch, torch.bfloat16)
    table[:a], table[b:c], table[d:] = 0, 0, 0
    ids = expected_ids(SMALL, batch)
    embed_truth.assert_same(out, embed_truth.rows_of(codec, table, ids, torch.bfloat16))
    del keep


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CODECS)
def test_a_wrong_token_gives_nan_rows(name: str, dtype: torch.dtype):
    codec = CODECS[name]
    table = random_table(codec, SMALL.num_rows)
    extents, keep = split_extents(table, ALL, NONE)
    batch = ([1, 97, 2, 3], [0, 4], [[5, 5]])
    out, error = run_embed(SMALL, codec, extents, batch, dtype)
    ids = expected_ids(SMALL, batch)
    assert ids.count(-2) == 10
    embed_truth.assert_same(out, embed_truth.rows_of(codec, table, ids, dtype))
    assert out[4:8].isnan().all() if dtype.is_floating_point else (out[4:8] == 0xFF).all()
    assert error.tolist()[:3] == [1, 1, 97]
    del keep


@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.behaviour(25)
def test_lookup(name: str, id_dtype: torch.dtype):
    """25: -1 reads nothing and gives zeros. Duplicates, the last row and wrong ids besides."""
    codec = CODECS[name]
    table = random_table(codec, 150)
    extents, keep = split_extents(table, (40, 150), (0, 40))
    ids = [0, 149, 39, 40, -1, 7, 7, 7, 150, -2, 2**31 - 1, -(2**31), *range(30)]
    for dtype in DTYPES:
        out = fresh((len(ids), width(codec, dtype)), dtype)
        error = new_error(out.device)
        assert lookup(on_device(ids, id_dtype), extents, codec, out, error, tile=TILE) is out
        embed_truth.assert_same(out, embed_truth.rows_of(codec, table, ids, dtype))
        kind, index, value, count = error.tolist()
        assert (kind, count) == (3, 4)
        assert ids[index] == value
        message = str(error_of(error, vocab_size=1, num_rows=150))
        assert message.startswith(f"row_ids[{index}]: expected -1 or 0 to 149, got {value}")
    del keep


@pytest.mark.parametrize("tile", [(1, 2, 1), (2, 4, 2), (16, 4, 4)], ids=str)
@pytest.mark.parametrize("spec", [SMALL, FOURGRAMS], ids=["4 heads", "3 heads"])
def test_the_tile_does_not_change_the_result(spec: Spec, tile: tuple[int, int, int]):
    codec = CODECS["fp8"]
    table = random_table(codec, spec.num_rows)
    extents, keep = split_extents(table, (0, 50), (50, spec.num_rows))
    batch = random_batch(spec, [1, 0, 2], num_padding=1)
    out, _ = run_embed(spec, codec, extents, batch, torch.bfloat16, tile=Tile(*tile))
    ids = expected_ids(spec, batch)
    embed_truth.assert_same(out, embed_truth.rows_of(codec, table, ids, torch.bfloat16))
    del keep


def test_nothing_to_do_touches_nothing():
    codec = CODECS["fp8"]
    out, _ = run_embed(SMALL, codec, Extents(SMALL.num_rows), ([], [0], []), torch.bfloat16)
    assert out.shape == (0, 40)
    batch = random_batch(SMALL, [2])
    out, _ = run_embed(SMALL, codec, Extents(SMALL.num_rows), batch, torch.bfloat16)
    assert (out == 0).all()


@pytest.mark.parametrize("num_rows", [1, 63, 129])
def test_many_rows(num_rows: int):
    codec = CODECS["fp8"]
    table = random_table(codec, 400)
    extents, keep = split_extents(table, (0, 400), NONE)
    ids = torch.randint(-1, 400, (num_rows,), generator=torch.Generator().manual_seed(1))
    out = fresh((num_rows, 40), torch.bfloat16)
    lookup(ids.to(DEVICE), extents, codec, out, new_error(out.device))
    embed_truth.assert_same(out, embed_truth.rows_of(codec, table, ids.tolist(), torch.bfloat16))
    del keep


def test_ragged_decode_batch_of_many_requests():
    codec = Codec("fp8", 16, 0.5)
    table = random_table(codec, BIGRAMS.num_rows)
    extents, keep = split_extents(table, (0, 50), (50, BIGRAMS.num_rows))
    batch = random_batch(BIGRAMS, [1 + i % 3 for i in range(17)])
    out, _ = run_embed(BIGRAMS, codec, extents, batch, torch.float32)
    ids = expected_ids(BIGRAMS, batch)
    embed_truth.assert_same(out, embed_truth.rows_of(codec, table, ids, torch.float32))
    del keep


@pytest.mark.parametrize("tier", ["device", "host"])
@pytest.mark.behaviour(27)
def test_rows_beyond_2_31_and_2_32_bytes(tier: str):
    """27: rows around the byte offsets 2^31 and 2^32 of an extent are the right ones."""
    codec = Codec("fp32", 256)
    marks = [0, 2**21 - 1, 2**21, 2**21 + 1, 2**22 - 1, 2**22, 2**22 + 1]
    num_rows = marks[-1] + 1
    # Pages that are never written take no memory.
    storage = torch.empty(num_rows, 1024, dtype=torch.uint8, device=DEVICE)
    rows = random_table(codec, len(marks))
    for row, mark in zip(rows, marks, strict=True):
        storage[mark] = row.to(DEVICE)
    if tier == "device":
        extents = Extents(num_rows, device=extent_of(storage))
    else:
        extents = Extents(num_rows, host=extent_of(storage))
    out = fresh((len(marks), 1024), torch.uint8)
    lookup(on_device(marks), extents, codec, out, new_error(out.device))
    embed_truth.assert_same(out, rows)


def test_extents_that_cannot_be():
    for kwargs, message in (
        ({"host": RowExtent(1, 3, 8)}, "host extent: expected rows within 0 to 10, got 3 to 11"),
        ({"host": RowExtent(0, 0, 2)}, "host extent: expected an address"),
        ({"device": RowExtent(0, 0, 3)}, "device extent: expected an address"),
        ({"device": RowExtent(1, -1, 3)}, "device extent: expected rows within"),
        ({"device": RowExtent(1, 0, 4), "host": RowExtent(1, 3, 6)}, "expected disjoint rows"),
    ):
        with pytest.raises(ArgumentError, match=message):
            Extents(10, **kwargs)
