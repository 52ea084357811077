"""Kind 15: calls of a table that are interrupted, at any place, hold nothing and tear nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from interrupts import held_by_process, interrupt_everywhere, require_held
from offload_stage import make_batch, make_spec, make_table

from gramary import Table
from gramary.errors import CapacityError, ClosedError, LoadError, ShardError
from gramary.machine.memory import HostRoom
from gramary.model.codecs import Codec

# Where storage is taken and given back; reading headers and limits takes nothing that stays.
STORAGE = (
    "row_store",
    "loading",
    "storage",
    "table.py",
    "tiers/",
    "lifetime",
    "native/",
    "reading/",
)


@pytest.fixture(params=["host", "host=4KiB,disk", "disk"])
def placement(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(codec="bf16")


@pytest.fixture
def table(folder: Path, placement: str) -> Iterator[Table]:
    with Table.open(folder, placement=placement) as opened:
        yield opened


READS: dict[str, Callable[[Table], object]] = {
    "lookup": lambda table: table.lookup(torch.tensor([[0, 3], [table.spec.num_rows - 1, -1]])),
    "embed": lambda table: table.embed(torch.arange(5), torch.tensor([0, 2, 5], dtype=torch.int32)),
    "stats": lambda table: table.stats(),
    "check": lambda table: table.check(),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("is_handled", [True, False])
def test_kind_15_a_read_that_is_interrupted_is_no_reason_to_wait_at_close(
    table: Table, name: str, is_handled: bool
) -> None:
    """Also while the exception is handled, as in a `with` block: its frames are still there."""
    read = READS[name]
    expected = READS["embed"](table)

    def check() -> None:
        calls, rows, _ = table._calls.totals()
        sizes = {"lookup": 4, "embed": 5 * table.spec.num_heads}
        assert name not in sizes or rows == 5 * table.spec.num_heads + (calls - 1) * sizes[name]
        # Nobody is inside.
        assert table._life._gate.using.empty(0)

    assert interrupt_everywhere(lambda: read(table), check, is_handled=is_handled) > 5
    assert torch.equal(READS["embed"](table), expected)


@pytest.mark.parametrize("is_handled", [True, False])
def test_kind_15_a_close_that_is_interrupted_is_gone_on_with_by_the_next(
    folder: Path, placement: str, is_handled: bool
) -> None:
    opened: list[Table] = []
    Table.open(folder, placement=placement).close()
    gc.collect()
    before = held_by_process()

    def check() -> None:
        (table,) = opened
        table.close()
        with pytest.raises(ClosedError):
            READS["embed"](table)
        require_held(before)

    assert interrupt_everywhere(
        lambda: opened[0].close(),
        check,
        before=lambda: opened.__setitem__(slice(None), [Table.open(folder, placement=placement)]),
        is_handled=is_handled,
        every=3,
    )


def test_kind_15_an_open_that_is_interrupted_leaves_nothing(folder: Path, placement: str) -> None:
    Table.open(folder, placement=placement).close()
    gc.collect()
    before = held_by_process()

    def check() -> None:
        require_held(before)

    num_places = interrupt_everywhere(
        lambda: Table.open(folder, placement=placement).close(), check, within=STORAGE, every=41
    )
    assert num_places > 5


def encoded(spec_rows: int) -> torch.Tensor:
    return torch.arange(spec_rows * 32, dtype=torch.float32).view(spec_rows, 32).to(torch.bfloat16)


def empty_table() -> Table:
    return Table.empty(make_spec(), Codec("bf16", 32, None), num_shards=2)


@pytest.mark.parametrize("step", ["load_shard", "materialize", "finish_loading"])
def test_kind_15_loading_that_is_interrupted_can_be_done_again(step: str) -> None:
    """No row counts as loaded that is not, and no storage is taken twice or lost."""
    rows = encoded(make_spec().num_rows)
    half = -(-len(rows) // 2)
    tables: list[Table] = []
    empty_table().close()
    gc.collect()
    held = held_by_process()

    def before() -> None:
        for table in tables:
            table.close()
        tables[:] = [empty_table()]
        if step == "finish_loading":
            for index in (0, 1):
                tables[0].load_shard(index, rows[index * half : (index + 1) * half])

    calls: dict[str, Callable[[], object]] = {
        "load_shard": lambda: tables[0].load_shard(1, rows[half:]),
        "materialize": lambda: tables[0].materialize(),
        "finish_loading": lambda: tables[0].finish_loading(),
    }

    def check() -> None:
        (table,) = tables
        ledger = table._store._ledger
        if step == "materialize" and not table._store.is_readable:
            table.materialize()
        if step == "load_shard":
            with pytest.raises(LoadError, match="rows were not loaded"):
                table.finish_loading()
            if not ledger.num_written:
                table.load_shard(1, rows[half:])
            table.load_shard(0, rows[:half])
        table.finish_loading()
        got = table.lookup(torch.arange(len(rows)))
        assert torch.equal(got, torch.zeros_like(rows) if step == "materialize" else rows)
        table.close()
        require_held(held)

    num_places = interrupt_everywhere(calls[step], check, before=before, within=STORAGE, every=3)
    assert num_places > 5


def test_kind_26_a_shard_that_is_refused_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the division into shards nor the storage: the right shards can still be loaded."""
    rows = encoded(make_spec().num_rows)
    half = -(-len(rows) // 2)
    spec, codec = make_spec(), Codec("bf16", 32, None)
    held = held_by_process()
    table = Table.empty(spec, codec)
    with monkeypatch.context() as patched:
        # The shard would do, and tells how many rows a shard has; then there is no room.
        patched.setattr(
            "gramary.storage.allocation.read_host_room", lambda _: HostRoom(available_bytes=9)
        )
        with pytest.raises(CapacityError):
            table.load_shard(0, rows[: -(-len(rows) // 3)])
    for wrong in (rows[:half].float(), rows[:half, :3], rows.repeat(2, 1)):
        with pytest.raises(ShardError):
            table.load_shard(0, wrong)
    with pytest.raises(LoadError, match="the first shard arrives"):
        _ = table.placement
    require_held(held)
    for index in (0, 1):
        table.load_shard(index, rows[index * half : (index + 1) * half])
        with pytest.raises(LoadError, match="before"):
            table.load_shard(index, rows[index * half : (index + 1) * half])
        with pytest.raises(LoadError, match="has its storage"):
            table.materialize()
    table.finish_loading()
    assert torch.equal(table.lookup(torch.arange(len(rows))), rows)
    with pytest.raises(LoadError, match="loading is over"):
        table.load_shard(0, rows[:half])
    assert torch.equal(table.lookup(torch.arange(len(rows))), rows)
    table.close()
    require_held(held)


def test_kind_15_a_read_under_an_interrupt_does_not_hang_a_with_block() -> None:
    """The plainest story: Ctrl-C inside a forward, and the `with` block closes the table."""
    batch = make_batch(1)

    def forward() -> None:
        with make_table() as table:
            table.embed(batch.token_ids, batch.query_start_loc, batch.history)

    within = ("table.py", "lifetime", "native/", "stats")
    interrupt_everywhere(forward, lambda: None, within=within, every=5, is_handled=False)
