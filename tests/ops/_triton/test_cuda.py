"""What only a GPU can show: captured graphs, pinned memory, no compiling and no allocating."""

import embed_truth
import pytest
import torch
import triton
from embed_stage import (
    BIGRAMS,
    REAL,
    SMALL,
    extent_of,
    on_device,
    random_batch,
    random_table,
    split_extents,
)
from gpu_stage import forbid_synchronisation

from gramary.flat_batch import FlatBatch
from gramary.model.codecs import Codec, decode_rows_ref
from gramary.ops._triton.decode import decode
from gramary.ops._triton.embed import embed, lookup
from gramary.ops._triton.hash import HashConstants, ngram_ids
from gramary.ops._triton.sticky_error import new_error
from gramary.ops._triton.tiles import MAX_MEDIUM_ROWS, MAX_SMALL_ROWS
from gramary.ops.extents import Extents

pytestmark = pytest.mark.gpu

FP8 = Codec("fp8", 160, 2.0**-12 * 1.25)


@pytest.fixture
def compilations():
    """Kernels that Triton specialised during the test."""
    names: list[str] = []
    triton.knobs.runtime.jit_post_compile_hook = lambda **facts: names.append(facts["repr"])
    yield names
    triton.knobs.runtime.jit_post_compile_hook = None


@pytest.mark.behaviour(28)
def test_a_captured_graph_follows_new_tokens_boundaries_and_histories():
    """28: replays give what eager calls give, padding and request boundaries included."""
    table = random_table(FP8, SMALL.num_rows)
    extents, keep = split_extents(table, (0, 80), (80, SMALL.num_rows))
    constants = HashConstants.of(SMALL, "cuda")
    error = new_error("cuda")
    T, R = 9, 4
    token_ids = torch.zeros(T, dtype=torch.int32, device="cuda")
    starts = torch.zeros(R + 1, dtype=torch.int32, device="cuda")
    history = torch.zeros(R, 2, dtype=torch.int64, device="cuda")
    rows = torch.empty(T, 4 * 160, dtype=torch.bfloat16, device="cuda")
    ids = torch.empty(T, 4, dtype=torch.int64, device="cuda")

    batch = FlatBatch(token_ids, starts, history)

    def step() -> None:
        embed(constants, batch, extents, FP8, rows, error)
        ngram_ids(constants, batch, ids, error)
        lookup(ids.view(-1), extents, FP8, rows.view(-1, 160), error)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for seed, lengths in enumerate([[1, 1, 1, 1], [0, 5, 0, 4], [9, 0, 0, 0], [0, 0, 0, 0]]):
        tokens, bounds, before = random_batch(SMALL, lengths, seed, T - sum(lengths))
        token_ids.copy_(torch.tensor(tokens))
        starts.copy_(torch.tensor(bounds))
        history.copy_(torch.tensor(before))
        rows.fill_(float("nan"))
        graph.replay()
        truth = embed_truth.ngram_ids(SMALL, tokens, bounds, before)
        embed_truth.assert_same(ids, torch.tensor(truth))
        flat = [row_id for row in truth for row_id in row]
        expected = embed_truth.rows_of(FP8, table, flat, torch.bfloat16)
        embed_truth.assert_same(rows.view(-1, 160), expected)
    assert error.tolist() == [0, 0, 0, 0]
    del keep


def test_nothing_is_compiled_for_another_batch_or_table(compilations: list[str]):
    def call(num_rows: int, lengths: list[int], offset: int) -> None:
        storage = torch.zeros(num_rows * 160 + offset, dtype=torch.uint8, device="cuda")
        rows = storage[offset:].view(num_rows, 160)
        extents = Extents(num_rows, extent_of(rows))
        constants = HashConstants.of(BIGRAMS, "cuda")
        error = new_error("cuda")
        tokens, starts, history = random_batch(BIGRAMS, lengths)
        # Views that begin off the alignment, as slices of an engine's buffers do.
        token_ids = on_device([0, *tokens])[1:]
        starts = on_device([0, *starts], torch.int32)[1:]
        history = on_device([[0], *history])[1:]
        batch = FlatBatch(token_ids, starts, history)
        out = torch.empty(len(tokens), 3 * 160, dtype=torch.bfloat16, device="cuda")
        embed(constants, batch, extents, FP8, out, error)
        ids = torch.empty(len(tokens), 3, dtype=torch.int64, device="cuda")
        ngram_ids(constants, batch, ids, error)
        lookup(ids.view(-1), extents, FP8, out.view(-1, 160), error)
        decode(rows, FP8, torch.empty(num_rows, 160, dtype=torch.bfloat16, device="cuda"))

    some, many = [3] * (MAX_SMALL_ROWS // 9 + 1), [9] * (MAX_MEDIUM_ROWS // 27 + 1)
    call(114, [1], 0)
    call(MAX_SMALL_ROWS + 1, some, 0)
    call(MAX_MEDIUM_ROWS + 1, many, 0)
    torch.cuda.synchronize()
    compilations.clear()
    for num_rows, lengths in (
        (200, [1]),
        (115, [16]),
        (128, [1] * 16),
        (MAX_SMALL_ROWS + 16, [*some, 1]),
        (10**6, [*many, 5]),
    ):
        call(num_rows, lengths, 1024)
    assert compilations == []


def test_no_call_allocates_or_synchronises():
    table = random_table(FP8, SMALL.num_rows)
    extents, keep = split_extents(table, (0, 80), (80, SMALL.num_rows))
    constants, error = HashConstants.of(SMALL, "cuda"), new_error("cuda")
    tokens, starts, history = random_batch(SMALL, [2, 3])
    batch = FlatBatch(on_device(tokens), on_device(starts, torch.int32), on_device(history))
    out = torch.empty(5, 640, dtype=torch.bfloat16, device="cuda")
    embed(constants, batch, extents, FP8, out, error)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with forbid_synchronisation():
        embed(constants, batch, extents, FP8, out, error)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    del keep


@pytest.mark.behaviour(12)
def test_launches_go_to_the_current_stream():
    """12 (in part): work is ordered by the caller's stream, not by the default one."""
    rows = random_table(FP8, 64).cuda()
    out = torch.zeros(64, 160, dtype=torch.bfloat16, device="cuda")
    decode(rows, FP8, out)
    torch.cuda.synchronize()
    out.zero_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        decode(rows, FP8, out)
    assert (out == 0).all() or stream.query()
    stream.synchronize()
    embed_truth.assert_same(out, decode_rows_ref(FP8, rows.cpu()))


def test_the_real_hash_at_random():
    constants = HashConstants.of(REAL, "cuda")
    tokens, starts, history = random_batch(REAL, [257, 0, 300, 1], seed=11)
    ids = torch.empty(len(tokens), 16, dtype=torch.int64, device="cuda")
    batch = FlatBatch(on_device(tokens), on_device(starts, torch.int32), on_device(history))
    ngram_ids(constants, batch, ids, new_error("cuda"))
    truth = embed_truth.ngram_ids(REAL, tokens, starts, history)
    embed_truth.assert_same(ids, torch.tensor(truth))
