"""Kind 9: what is pickled, copied, or handed to workers that spawn or forkserver start."""

import copy
import functools
import multiprocessing
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from abilities import ask_for
from reopening_stage import read

from gramary import Batch, Connector, PLELayer, Settings, SlotPool, Table, ple
from gramary.errors import (
    CheckpointError,
    ChecksumError,
    ClosedError,
    FetchTimeoutError,
    GramaryError,
    RowFetchError,
    RowReadError,
    TokenError,
    UnsupportedError,
)
from gramary.files.pack import build_pack
from gramary.files.source import open_source
from gramary.integrations.transformers import load
from gramary.offload import RowServer

IDS = torch.arange(40)


def batch_of(table: Table) -> Batch:
    """A batch of two requests with histories."""
    history = torch.arange(2 * table.spec.history_length).view(2, -1)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    return Batch(torch.arange(10, 15), starts, history=history, is_prefill=True)


@pytest.fixture
def folder(make_checkpoint: Callable[..., Path]) -> Path:
    """A model's folder."""
    return make_checkpoint(codec="fp8")


@pytest.fixture
def table(folder: Path) -> Iterator[Table]:
    """A table on disk."""
    with Table.open(folder, placement="disk") as opened:
        yield opened


@pytest.fixture
def share() -> Iterator[Settings]:
    """Settings under which tables of this test share rows."""
    ask_for("shared_memory")
    with tempfile.TemporaryDirectory(prefix="gramary-test-", dir="/dev/shm") as root:
        yield Settings(share_folder=root)


WAYS: dict[str, dict[str, Any]] = {
    "on disk": {"placement": "disk"},
    "a shard": {"placement": "disk", "shard": (1, 2), "shard_by": "heads"},
    "shared": {"placement": "host=20KiB,disk", "share": "pickled"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_pack", [False, True], ids=["folder", "pack"])
def test_kind_9_a_table_is_opened_again_from_its_pickle(
    folder: Path, share: Settings, tmp_path: Path, way: str, is_pack: bool
) -> None:
    """Kind 9: at the same placement, with its own life."""
    path = folder
    if is_pack:
        path = tmp_path / "table.pack"
        build_pack(open_source(folder), path)
    with Table.open(path, settings=share, **WAYS[way]) as table:
        pickled = pickle.dumps(table)
        expected = table.lookup(IDS)
        with pickle.loads(pickled) as again:
            assert again is not table
            assert again.placement == table.placement
            assert torch.equal(again.lookup(IDS), expected)
            # A pickle of a pickle.
            pickle.loads(pickle.dumps(again)).close()
        assert torch.equal(table.lookup(IDS), expected)
    with pytest.raises(ClosedError):
        pickle.dumps(table)
    with pickle.loads(pickled) as later:
        assert torch.equal(later.lookup(IDS), expected)


def test_kind_9_a_table_whose_rows_cannot_follow_says_what_to_do(folder: Path) -> None:
    """Kind 9: rows in memory would be taken once more by each process."""
    spec, codec = open_source(folder).spec, open_source(folder).codec
    remedy = r"host memory.*Table\.open\(path\).*share="
    for placement in ("host", "host=20KiB,disk"):
        with (
            Table.open(folder, placement=placement) as table,
            pytest.raises(UnsupportedError, match=remedy),
        ):
            pickle.dumps(table)
    with load(folder, placement="disk") as model:
        for what in (model, model.tables[0], model.model):
            with pytest.raises(UnsupportedError, match=r"open|load"):
                pickle.dumps(what)
    for is_ready in (False, True):
        table = Table.empty(spec, codec)
        if is_ready:
            table.materialize()
        with table, pytest.raises(UnsupportedError, match=r"Table\.open"):
            pickle.dumps(table)


def test_kind_9_a_pickle_does_not_open_other_rows(
    copy_checkpoint: Callable[..., Path], make_checkpoint: Callable[..., Path]
) -> None:
    """Kind 9: whoever put another model there in between is told of."""
    folder = copy_checkpoint(codec="fp8")
    with Table.open(folder, placement="disk") as table:
        pickled = pickle.dumps(table)
    other = make_checkpoint(codec="fp8", seed=1)
    shutil.copy(other / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="other rows"):
        pickle.loads(pickled)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_kind_9_a_copy_of_a_table_is_the_table(table: Table, copied: Callable[[Any], Any]) -> None:
    """Kind 9: rows are never written, so there is nothing to part."""
    assert copied(table) is table
    assert copied({"rows": table})["rows"] is table


def test_kind_9_a_deep_copy_of_a_layer_shares_its_table(folder: Path) -> None:
    """Kind 9: its own weights, the same rows, closed once for both."""
    layer = PLELayer.from_checkpoint(folder, placement="disk")
    twin = copy.deepcopy(layer)
    assert twin.table is layer.table
    assert twin.key_proj.weight is not layer.key_proj.weight
    table = layer.table
    hidden = torch.ones(1, 4, layer.geometry.channels, dtype=layer.dtype)
    tokens = torch.arange(4)[None]
    expected = layer(hidden, tokens)
    assert torch.equal(twin(hidden, tokens), expected)
    del layer
    assert torch.equal(twin(hidden, tokens), expected)
    again = pickle.loads(pickle.dumps(twin))
    assert again.table is not table
    twin.table.close()
    twin.table.close()
    with pytest.raises(ClosedError):
        twin(hidden, tokens)
    assert torch.equal(again(hidden, tokens), expected)
    again.table.close()


def test_kind_9_batches_and_states_are_values(table: Table, folder: Path) -> None:
    """Kind 9: copied and pickled as what they hold."""
    layer = PLELayer.from_checkpoint(folder, table=table)
    batch, state = batch_of(table), layer.new_state(2, max_speculative_tokens=1)
    state.advance(batch.token_ids, batch.query_start_loc)
    for take in (copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
        again = take(batch)
        for name in ("token_ids", "query_start_loc", "history"):
            assert torch.equal(getattr(again, name), getattr(batch, name))
            assert getattr(again, name) is not getattr(batch, name)
        assert again.why_not_prompt_only() is None
        forked = take(state)
        assert torch.equal(forked.history(), state.history())
        forked.advance(batch.token_ids, batch.query_start_loc)
        assert not torch.equal(forked.positions, state.positions)


def bound_objects(table: Table, layer: PLELayer, connector: Connector) -> dict[str, Any]:
    """What stands for threads, memory or addresses of this process, and the word of its remedy."""
    g = layer.geometry
    caps = ple.Caps(
        device=torch.device("cpu"), mode="mixed", max_tokens=4, max_seqs=2, max_state_slots=4,
        max_speculative_tokens=0, streams=g.streams, hidden_size=g.hidden_size,
        kernel_size=g.kernel_size, dilation=g.dilation, dtype=layer.dtype,
    )  # fmt: skip
    windows = torch.zeros(4, caps.state_capacity, caps.channels, dtype=layer.dtype)
    pool = SlotPool(caps, windows, history_length=2, model_id="m")
    return {
        r"make the connector there": connector,
        r"wait for them there": connector.request(batch_of(table)),
        r"export_blob\(\)": pool,
        r"ple\.plan\(caps\)": ple.plan(caps),
        r"hand Table": table.tiers[0],
    }


def test_kind_9_what_belongs_to_its_process_says_what_to_do(table: Table, folder: Path) -> None:
    """Kind 9: connectors, tickets, pools, plans and tiers, by each way to take them along."""
    layer = PLELayer.from_checkpoint(folder, table=table)
    with Connector(table, max_tokens=8) as connector:
        for remedy, value in bound_objects(table, layer, connector).items():
            for take in (pickle.dumps, copy.copy, copy.deepcopy, lambda one: copy.deepcopy([one])):
                with pytest.raises(UnsupportedError, match=remedy):
                    take(value)
        ticket = connector.request(batch_of(table))
        assert torch.equal(connector.wait(ticket), table.embed(*vars_of(batch_of(table))))
    # What it is made of has no process.
    server = object.__new__(RowServer)
    with pytest.raises(UnsupportedError, match="address"):
        pickle.dumps(server)


def vars_of(batch: Batch) -> tuple[Any, ...]:
    """A batch's tensors."""
    return batch.token_ids, batch.query_start_loc, batch.history


ERRORS = [
    RowReadError("reading rows failed", file="a/b", offset=8, errno=5),
    RowReadError("reading rows failed", file="a/b", offset=8, errno=0),
    RowFetchError("no rows", file="a", offset=3, errno=2),
    FetchTimeoutError("late"),
    TokenError("token_ids[1]: wrong"),
    ChecksumError("block 3"),
    UnsupportedError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("take", [
    copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error)),
], ids=["copy", "deepcopy", "pickle"])  # fmt: skip
def test_kind_9_an_error_crosses_processes_whole(
    error: GramaryError, take: Callable[[GramaryError], GramaryError]
) -> None:
    """Kind 9: a pool of workers hands on what was raised in one of them."""
    again = take(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_kind_9_a_worker_reads_what_it_was_handed(
    folder: Path, share: Settings, method: str
) -> None:
    """Kind 9: tables, a layer and a batch as arguments of a process; its error comes back whole."""
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    open_table = functools.partial(Table.open, folder, settings=share)
    with (
        open_table(placement="disk") as table,
        open_table(placement="host", share="handed") as shared,
    ):
        layer = PLELayer.from_checkpoint(folder, table=table)
        batch = batch_of(table)
        worker = context.Process(target=read, args=((table, shared, layer, batch), answers))
        worker.start()
        results, error = answers.get()
        worker.join()
        assert worker.exitcode == 0
        rows = table.embed(*vars_of(batch))
        hidden = torch.ones(batch.num_tokens, layer.geometry.channels, dtype=layer.dtype)
        added = layer(hidden, batch.token_ids, batch.query_start_loc)
        assert results == [value.float().tolist() for value in (rows, rows, added)]
        assert f"{table.spec.num_rows}" in str(error)
