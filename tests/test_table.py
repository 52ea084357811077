"""The table: loading, reading, life."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from table_stage import (
    CODECS,
    OUTPUT_DTYPES,
    encoded_table,
    expected_embedding,
    expected_rows,
    poisoned,
    random_batch,
    same_bits,
    small_spec,
)
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gramary import Table, ngram_ids
from gramary.errors import (
    ArgumentError,
    CapacityError,
    ClosedError,
    LoadError,
    PlacementError,
    PlacementSyntaxError,
    RowIdError,
    ScaleError,
    ShardError,
    TokenError,
)
from gramary.model.codecs import Codec
from gramary.settings import Settings

SPEC = small_spec()


def loaded(codec_name: str = "bf16", **options: Any) -> tuple[Table, torch.Tensor]:
    """Returns a table loaded in three shards, and all its encoded rows."""
    encoded, codec = encoded_table(SPEC, codec_name)
    table = Table.empty(SPEC, codec, **options)
    each = -(-SPEC.num_rows // 3)
    for index in (0, 2, 1):
        table.load_shard(index, encoded[index * each : (index + 1) * each])
    table.finish_loading()
    return table, encoded


@pytest.mark.parametrize("dtype", OUTPUT_DTYPES, ids=str)
@pytest.mark.parametrize("codec_name", CODECS)
def test_lookup_equals_the_reference(codec_name: str, dtype: torch.dtype | None) -> None:
    table, encoded = loaded(codec_name)
    last = SPEC.num_rows - 1
    for row_ids in (
        torch.tensor([0, last, -1, 5, 5, last]),
        torch.randint(0, last, (129,)),
        torch.randint(-1, last, (3, 1, 7)),
        torch.randint(0, last, (20, 6)).t(),
        torch.randint(0, last, (63,), dtype=torch.int32),
        torch.tensor(3),
        torch.empty(0, dtype=torch.int64),
        torch.empty(4, 0, dtype=torch.int32),
    ):
        rows = table.lookup(row_ids, dtype=dtype)
        assert rows.shape == (*row_ids.shape, table.codec.output_width(dtype))
        assert same_bits(rows, expected_rows(table.codec, encoded, row_ids, dtype))
    table.close()


@pytest.mark.parametrize("dtype", OUTPUT_DTYPES, ids=str)
@pytest.mark.parametrize("codec_name", CODECS)
def test_embed_equals_the_reference(codec_name: str, dtype: torch.dtype | None) -> None:
    table, encoded = loaded(codec_name)
    for lengths, num_padding in (
        ([1], 0),
        ([3, 0, 5], 2),
        ([130], 0),
        ([0], 0),
        ([0, 0], 3),
        ([], 0),
    ):
        batch = random_batch(SPEC, lengths, num_padding=num_padding)
        rows = table.embed(*batch, dtype=dtype)
        assert same_bits(rows, expected_embedding(SPEC, table.codec, encoded, batch, dtype))
    table.close()


def test_embed_without_history_begins_the_streams() -> None:
    table, encoded = loaded()
    token_ids, starts, history = random_batch(SPEC, [4, 2])
    history.fill_(SPEC.eos_token_id)
    expected = expected_embedding(SPEC, table.codec, encoded, (token_ids, starts, history))
    assert same_bits(table.embed(token_ids, starts), expected)
    assert same_bits(table.embed(token_ids.to(torch.int32), starts), expected)


def test_results_go_to_the_callers_buffer() -> None:
    table, encoded = loaded("fp8")
    row_ids = torch.randint(-1, SPEC.num_rows, (5, 3))
    for dtype in OUTPUT_DTYPES[1:]:
        out = poisoned((5, 3, table.codec.output_width(dtype)), dtype)
        assert table.lookup(row_ids, out=out) is out
        assert same_bits(out, expected_rows(table.codec, encoded, row_ids, dtype))
    batch = random_batch(SPEC, [9])
    out = poisoned((9, SPEC.embed_dim), torch.bfloat16)
    assert table.embed(*batch, out=out) is out
    assert same_bits(out, expected_embedding(SPEC, table.codec, encoded, batch))


@pytest.mark.parametrize(
    ("out", "dtype", "problem"),
    [
        (torch.empty(2, 33, dtype=torch.bfloat16), None, r"\[2, 32\]"),
        (torch.empty(2, 32, dtype=torch.float32), torch.bfloat16, "torch.bfloat16"),
        (torch.empty(2, 32, dtype=torch.float64), None, "dtype: expected one of"),
        (torch.empty(32, 2, dtype=torch.bfloat16).t(), None, "contiguous"),
        (torch.empty(2, 32, dtype=torch.bfloat16, device="meta"), None, "on cpu"),
        (torch.empty(2, 32, requires_grad=True), None, "without gradient"),
        ([1, 2], None, "expected a tensor"),
        (None, torch.int8, "dtype: expected one of"),
    ],
    ids=["shape", "both", "float64", "strided", "meta", "gradient", "list", "int8"],
)
def test_result_buffers_that_do_not_fit(out: Any, dtype: Any, problem: str) -> None:
    table, _ = loaded()
    with pytest.raises(ArgumentError, match=problem):
        table.lookup(torch.tensor([1, 2]), out=out, dtype=dtype)


@pytest.mark.parametrize(
    ("row_ids", "index", "value"),
    [
        (torch.tensor([0, -2, -3]), 1, -2),
        (torch.tensor([0, 1, SPEC.num_rows]), 2, SPEC.num_rows),
        (torch.tensor([2**62, -1]), 0, 2**62),
        (torch.tensor([[1, 2], [-(2**63), 5]]), 2, -(2**63)),
        (torch.tensor([2**31 - 1], dtype=torch.int32), 0, 2**31 - 1),
    ],
)
def test_the_first_wrong_row_id_is_named(row_ids: torch.Tensor, index: int, value: int) -> None:
    table, _ = loaded()
    with pytest.raises(RowIdError, match=rf"row_ids\[{index}\]: .* got {value}"):
        table.lookup(row_ids)


def test_wrong_tokens_are_named() -> None:
    table, _ = loaded()
    with pytest.raises(TokenError, match="500"):
        table.embed(torch.tensor([1, 500, 501]), torch.tensor([0, 3], dtype=torch.int32))


@pytest.mark.parametrize(
    "row_ids",
    [
        torch.tensor([1.0]),
        torch.tensor([True]),
        [1, 2],
        torch.tensor([1]).to("meta"),
        torch.tensor([1]).to_sparse(),
    ],
)
def test_row_ids_must_be_integers_here(row_ids: Any) -> None:
    table, _ = loaded()
    with pytest.raises(ArgumentError, match="row_ids: expected"):
        table.lookup(row_ids)


def test_rows_carry_no_gradient() -> None:
    table, _ = loaded()
    assert not table.lookup(torch.tensor([1])).requires_grad
    with torch.inference_mode():
        table.lookup(torch.tensor([1]))


@pytest.mark.behaviour(10)
def test_the_default_dtype_decides_nothing() -> None:
    """Behaviour 10: a framework's default dtype never decides the table's."""
    before = torch.get_default_dtype()
    try:
        for default in (torch.float64, torch.float16):
            torch.set_default_dtype(default)
            for codec_name in CODECS:
                table, encoded = loaded(codec_name)
                row_ids = torch.tensor([3, -1])
                assert same_bits(
                    table.lookup(row_ids), expected_rows(table.codec, encoded, row_ids)
                )
    finally:
        torch.set_default_dtype(before)


@pytest.mark.behaviour(2)
def test_an_empty_table_owns_no_storage() -> None:
    """Behaviour 2: shape, codec and bytes are known first; storage is taken once, in place."""
    encoded, codec = encoded_table(SPEC, "fp8")
    table = Table.empty(SPEC, codec)
    assert (table.spec.num_rows, table.codec.row_bytes) == (SPEC.num_rows, 32)
    assert table.stats().tiers == ()
    with pytest.raises(LoadError, match="planned when the first shard arrives"):
        _ = table.placement
    table.load_shard(0, encoded)
    [tier] = table.stats().tiers
    table.finish_loading()
    assert table.stats().tiers == (tier,)
    table.lookup(torch.tensor([0]))
    [read] = table.stats().tiers
    # Nothing but the rows that were read differs.
    assert read.facts == {**tier.facts, "num_rows": 1, "row_bytes": codec.row_bytes}
    assert table.placement.extents[0].num_rows == SPEC.num_rows


@pytest.mark.behaviour(2)
def test_a_huge_empty_table_costs_nothing() -> None:
    """Behaviour 2: nothing is allocated for a table larger than this machine."""
    spec = small_spec(row_dim=16, base=2**36)
    table = Table.empty(spec, Codec("bf16", 16), placement="device=auto,host=auto")
    assert table.spec.num_rows * table.codec.row_bytes > 2**42
    with pytest.raises(CapacityError, match="without a place"):
        table.materialize()
    table.close()


def test_a_materialized_table_reads_zero() -> None:
    _, codec = encoded_table(SPEC, "nvfp4")
    table = Table.empty(SPEC, codec)
    table.materialize()
    assert not table.lookup(torch.arange(SPEC.num_rows)).any()
    table.finish_loading()
    with pytest.raises(LoadError, match="storage already"):
        table.materialize()


def test_a_materialized_table_can_be_loaded() -> None:
    encoded, codec = encoded_table(SPEC, "bf16")
    table = Table.empty(SPEC, codec)
    table.materialize()
    table.load_shard(0, encoded[:700])
    with pytest.raises(LoadError, match="not loaded"):
        table.lookup(torch.tensor([0]))
    table.load_shard(1, encoded[700:])
    table.finish_loading()
    row_ids = torch.arange(SPEC.num_rows)
    assert same_bits(table.lookup(row_ids), expected_rows(codec, encoded, row_ids))


@pytest.mark.behaviour(16)
def test_every_row_is_loaded_exactly_once() -> None:
    """Behaviour 16: a missing, doubled or misshapen shard is named before serving."""
    encoded, codec = encoded_table(SPEC, "bf16")
    table = Table.empty(SPEC, codec)
    with pytest.raises(LoadError, match="rows were not loaded"):
        table.finish_loading()
    table.load_shard(0, encoded[:500])
    with pytest.raises(LoadError, match="rows 0 to 499 were loaded before"):
        table.load_shard(0, encoded[:500])
    with pytest.raises(ShardError, match="shard 1: expected 500 rows"):
        table.load_shard(1, encoded[500:999])
    with pytest.raises(LoadError, match=r"rows were not loaded, the first of them rows 500"):
        table.finish_loading()
    with pytest.raises(LoadError, match="not loaded"):
        table.lookup(torch.tensor([0]))
    table.load_shard(2, encoded[1000:])
    table.load_shard(1, encoded[500:1000])
    table.finish_loading()
    with pytest.raises(LoadError, match="loading is over"):
        table.load_shard(1, encoded[500:1000])


def test_shards_come_in_the_checkpoints_own_dtype() -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    table = Table.empty(SPEC, codec)
    table.load_shard(0, encoded.view(torch.float8_e4m3fn))
    table.finish_loading()
    assert same_bits(table.lookup(torch.tensor([9]), dtype=torch.uint8)[0], encoded[9])
    encoded, codec = encoded_table(SPEC, "bf16")
    table = Table.empty(SPEC, codec)
    table.load_shard(0, encoded.view(torch.bfloat16).requires_grad_())
    table.finish_loading()
    assert same_bits(table.lookup(torch.tensor([9]), dtype=torch.uint8)[0], encoded[9])


def test_nvfp4_shards_come_in_two_tensors() -> None:
    encoded, codec = encoded_table(SPEC, "nvfp4")
    table = Table.empty(SPEC, codec)
    codes, scales = encoded[:, :16], encoded[:, 16:]
    with pytest.raises(ScaleError, match="pass scales="):
        table.load_shard(0, codes)
    with pytest.raises(ScaleError, match="expected block scales"):
        table.load_shard(0, codes, scales[:5])
    table.load_shard(0, codes, scales.contiguous().view(torch.float8_e4m3fn))
    table.finish_loading()
    row_ids = torch.arange(SPEC.num_rows)
    assert same_bits(table.lookup(row_ids), expected_rows(codec, encoded, row_ids))


@pytest.mark.parametrize(
    "rows",
    [torch.zeros(5, 32), torch.zeros(5, 31, dtype=torch.bfloat16), torch.zeros(32), [1],
     torch.zeros(5, 32, dtype=torch.uint8), torch.zeros(5, 32, dtype=torch.bfloat16, device="meta"),
     torch.zeros(5, 32, dtype=torch.bfloat16).to_sparse()],
)  # fmt: skip
def test_shards_of_another_shape_or_dtype_are_refused(rows: Any) -> None:
    table = Table.empty(SPEC, Codec("bf16", 32))
    with pytest.raises(ShardError, match="shard 0: expected"):
        table.load_shard(0, rows)


def test_scales_beside_rows_without_any_are_refused() -> None:
    table = Table.empty(SPEC, Codec("bf16", 32))
    with pytest.raises(ArgumentError, match="take none"):
        table.load_shard(0, torch.zeros(5, 32, dtype=torch.bfloat16), torch.zeros(5, 2))


@pytest.mark.behaviour(13)
def test_what_cannot_be_honoured_is_refused_where_it_is_given() -> None:
    """Behaviour 13: an option that cannot be honoured is an error where it is given."""
    codec = Codec("bf16", 32)
    with pytest.raises(PlacementSyntaxError):
        Table.empty(SPEC, codec, placement="ssd")
    with pytest.raises(PlacementError, match="no files"):
        Table.empty(SPEC, codec, placement="host=4KiB,disk")
    with pytest.raises(CapacityError, match="without a place"):
        Table.empty(SPEC, codec, placement="host=4KiB")
    with pytest.raises(ArgumentError, match="shard"):
        Table.empty(SPEC, codec, shard=(2, 2))
    with pytest.raises(ArgumentError, match="device: expected the CPU or a CUDA device"):
        Table.empty(SPEC, codec, device="meta")
    with pytest.raises(ArgumentError, match="expected rows of 32 values like the spec, got 16"):
        Table.empty(SPEC, Codec("bf16", 16))
    wrong: list[dict[str, Any]] = [
        {"placement": None}, {"placement": b"host"}, {"shard": 0}, {"shard": (0,)},
        {"shard": (0.0, 2)}, {"shard": (0, 1, 2)}, {"kv_bytes": 1.5}, {"kv_bytes": -1},
        {"settings": {}}, {"num_shards": "3"}, {"device": 3.5},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(ArgumentError, match=f"{next(iter(options))}: expected"):
            Table.empty(SPEC, codec, **options)
    with pytest.raises(ArgumentError, match="spec: expected a HashSpec"):
        Table.empty(None, codec)
    with pytest.raises(ArgumentError, match="codec: expected a Codec"):
        Table.empty(SPEC, "bf16")
    if not torch.cuda.is_available():
        with pytest.raises(PlacementError, match="no GPU"):
            Table.empty(SPEC, codec, placement="device")
        with pytest.raises(ArgumentError, match="0 CUDA devices are here"):
            Table.empty(SPEC, codec, device="cuda")


@pytest.mark.behaviour(6)
def test_host_rows_are_compared_with_free_memory_first() -> None:
    """Behaviour 6: what is free is compared before anything is taken, and the numbers are told."""
    table = Table.empty(
        SPEC, Codec("bf16", 32), placement="host=auto", settings=Settings(memory_limit_bytes=1000)
    )
    with pytest.raises(CapacityError, match="without a place"):
        table.materialize()
    encoded, codec = encoded_table(SPEC, "bf16")
    table = Table.empty(SPEC, codec, settings=Settings(memory_limit_bytes=1000))
    nbytes = f"{encoded.numel():,}"
    with pytest.raises(CapacityError, match=f"host needs {nbytes} bytes .* has 1,000 free"):
        table.load_shard(0, encoded)
    assert table.stats().tiers == ()


@pytest.mark.parametrize("shard_by", ["rows", "heads"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_shards_sum_to_the_whole(size: int, shard_by: str) -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    batch = random_batch(SPEC, [40, 3])
    total = torch.zeros(43, SPEC.num_heads * codec.row_bytes, dtype=torch.uint8)
    for rank in range(size):
        table = Table.empty(SPEC, codec, shard=(rank, size), shard_by=shard_by)
        table.load_shard(0, encoded)
        table.finish_loading()
        total += table.embed(*batch, dtype=torch.uint8)
        table.close()
    assert torch.equal(total, expected_embedding(SPEC, codec, encoded, batch, torch.uint8))


def test_a_rank_without_rows_gives_zero_rows() -> None:
    spec = small_spec(base=1, rows_multiple=1)
    codec = Codec("bf16", 32)
    size = spec.num_rows + 2
    table = Table.empty(spec, codec, shard=(size - 1, size))
    table.finish_loading()
    assert table.placement.num_rows == 0
    assert not table.lookup(torch.arange(spec.num_rows)).any()
    with pytest.raises(RowIdError):
        table.lookup(torch.tensor([spec.num_rows]))
    table.close()


def test_a_closed_table_refuses_everything() -> None:
    table, encoded = loaded()
    with table:
        table.lookup(torch.tensor([0]))
    table.close()
    calls: list[Callable[[], object]] = [
        lambda: table.lookup(torch.tensor([0])),
        lambda: table.embed(torch.tensor([0]), torch.tensor([0, 1], dtype=torch.int32)),
        lambda: table.load_shard(0, encoded),
        table.stats,
        table.check,
        table.check_integrity,
        table.materialize,
        table.finish_loading,
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="the table was closed"):
            call()


def test_lookups_run_on_many_threads_and_close_waits() -> None:
    table, encoded = loaded("nvfp4")
    wrong: list[BaseException | str] = []
    started = threading.Barrier(5)

    def read(seed: int) -> None:
        row_ids = torch.randint(
            -1, SPEC.num_rows, (257,), generator=torch.Generator().manual_seed(seed)
        )
        expected = expected_rows(table.codec, encoded, row_ids)
        started.wait(30)
        try:
            while True:
                if not same_bits(table.lookup(row_ids), expected):
                    wrong.append("a wrong row")
        except ClosedError:
            pass
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    started.wait(30)
    while table.stats().num_calls < 40:
        pass
    table.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert wrong == []


def test_a_failed_allocation_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from gramary.storage import allocation as storage

    built: list[weakref.ref[Any]] = []
    real = storage.HostTier

    class SecondFails(real):  # type: ignore[valid-type,misc]
        def __init__(self, *arguments: Any) -> None:
            if built:
                raise CapacityError("the machine refused")
            super().__init__(*arguments)
            built.append(weakref.ref(self))

    monkeypatch.setattr(storage, "HostTier", SecondFails)
    encoded, codec = encoded_table(SPEC, "bf16")
    table = Table.empty(SPEC, codec)
    table.load_shard(0, encoded)
    other = Table.empty(SPEC, codec)
    with pytest.raises(CapacityError, match="refused"):
        other.load_shard(0, encoded)
    assert other.stats().tiers == ()
    other.close()
    table.close()


def test_stats_count_calls_and_rows() -> None:
    table, _ = loaded()
    table.lookup(torch.zeros(3, 2, dtype=torch.int64))
    table.embed(*random_batch(SPEC, [5]))
    stats = table.stats()
    assert (stats.num_calls, stats.num_rows_asked) == (2, 6 + 5 * SPEC.num_heads)
    assert stats.seconds > 0
    assert stats.tiers[0].name == "host"
    assert stats.tiers[0].nbytes == SPEC.num_rows * table.codec.row_bytes


@pytest.mark.behaviour(9)
def test_a_compiled_graph_holds_a_handle_and_no_table() -> None:
    """Behaviour 9: the table is an opaque operation; the traced graph has no row of it."""
    table, encoded = loaded("fp8")
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        assert all(tensor.numel() < 100 for tensor in inputs)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend)
    def model(token_ids: torch.Tensor, starts: torch.Tensor, row_ids: torch.Tensor) -> torch.Tensor:
        return (
            table.embed(token_ids, starts).sum() + table.lookup(row_ids, dtype=torch.float32).sum()
        )

    token_ids, starts, history = random_batch(SPEC, [5])
    history.fill_(SPEC.eos_token_id)
    row_ids = torch.tensor([1, -1, 3])
    batch = (token_ids, starts, history)
    expected = (
        expected_embedding(SPEC, table.codec, encoded, batch).sum()
        + expected_rows(table.codec, encoded, row_ids, torch.float32).sum()
    )
    assert torch.equal(model(token_ids, starts, row_ids), expected)
    [graph] = graphs
    assert not list(graph.parameters())
    assert not list(graph.buffers())
    assert "gramary.embed" in graph.code
    torch.compiler.reset()


def test_a_compiled_lookup_writes_the_callers_buffer() -> None:
    table, encoded = loaded()
    out = poisoned((2, SPEC.row_dim), torch.float32)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def model(row_ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return table.lookup(row_ids, out=out) * 2

    row_ids = torch.tensor([4, 9])
    expected = expected_rows(table.codec, encoded, row_ids, torch.float32)
    assert torch.equal(model(row_ids, out), expected * 2)
    assert same_bits(out, expected)
    torch.compiler.reset()


def test_a_fake_tensor_gets_a_fake_result_and_reads_nothing() -> None:
    """Outside of any compiler too: such a tensor has no memory, whatever its address says."""
    table, _ = loaded("fp8")
    batch = random_batch(SPEC, [5, 3])
    fake = FakeTensorMode().from_tensor
    row_ids, fake_batch = fake(torch.tensor([1, -1])), [fake(tensor) for tensor in batch]
    buffer = fake(torch.empty(2, SPEC.row_dim))
    results = [
        (table.lookup(row_ids), (2, SPEC.row_dim), torch.bfloat16),
        (table.lookup(row_ids, out=buffer), (2, SPEC.row_dim), torch.float32),
        (table.embed(*fake_batch), (8, SPEC.embed_dim), torch.bfloat16),
        (table.embed(*fake_batch, dtype=torch.uint8), (8, SPEC.embed_dim), torch.uint8),
    ]
    for rows, shape, dtype in results:
        assert isinstance(rows, FakeTensor)
        assert (tuple(rows.shape), rows.dtype) == (shape, dtype)
    with pytest.raises(ArgumentError, match="expected a plain tensor, got a FakeTensor"):
        ngram_ids(SPEC, *fake_batch)
    assert table.stats().num_calls == 0


@pytest.mark.behaviour(9)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_traced_function_asks_the_table_at_every_run(mode: str) -> None:
    """Behaviour 9: tracers by dispatch see one operation, not a result without a source."""
    table, encoded = loaded("fp8")
    traced = make_fx(lambda row_ids: table.lookup(row_ids), tracing_mode=mode)(torch.tensor([1, 2]))
    assert "gramary.lookup" in traced.code
    assert not list(traced.buffers())
    row_ids = torch.tensor([7, -1])
    assert same_bits(traced(row_ids), expected_rows(table.codec, encoded, row_ids))


def test_views_that_are_negated_when_they_are_read() -> None:
    table, encoded = loaded()
    row_ids, batch = torch.tensor([4, -1, 9]), random_batch(SPEC, [5, 0, 3])
    expected = expected_rows(table.codec, encoded, row_ids)
    assert same_bits(table.lookup(torch._neg_view(-row_ids)), expected)
    negated = [torch._neg_view(-tensor) for tensor in batch]
    expected = expected_embedding(SPEC, table.codec, encoded, batch)
    assert same_bits(table.embed(*negated), expected)
    out = torch._neg_view(torch.empty(3, SPEC.row_dim))
    with pytest.raises(ArgumentError, match="out: expected a tensor that is not negated"):
        table.lookup(row_ids, out=out)
