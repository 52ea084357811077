"""The row service asked directly: progress, several regions, both lanes at once, its states."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
import torch
from children import run_child
from offload_stage import make_batch, make_table, wait_until

from gramary import Batch, Settings, Table
from gramary.native.offload import RowService, Tenant, load_u32, raise_u32, store_u32, time_answer
from gramary.native.ring import RingFields, progress_of
from gramary.offload.memory.region import Region
from gramary.offload.service.stores import store_arguments
from gramary.offload.setup import ring_shape


@pytest.fixture
def table() -> Iterator[Table]:
    with make_table() as opened:
        yield opened


@contextlib.contextmanager
def served(
    *tables: Table, max_tokens: int = 64, num_threads: int = 2
) -> Iterator[tuple[list[Region], RowService]]:
    """Gives a region for each table, and the one service of all."""
    regions = [Region(ring_shape([table], max_tokens, 2)) for table in tables]
    tenants = [
        Tenant(
            base=region.address,
            layout=region.ring,
            stores=[store_arguments(table)],
            hold=region.hold(),
        )
        for region, table in zip(regions, tables, strict=True)
    ]
    service = RowService(tenants, num_threads=num_threads)
    service.start()
    try:
        yield regions, service
    finally:
        service.stop()
        for region in regions:
            region.close()


def ask(region: Region, number: int, batch: Batch) -> None:
    region.write_inputs(number, batch.token_ids, batch.query_start_loc, batch.history, 97)
    region.announce(number)


def encoded_rows(region: Region, table: Table, number: int, num_tokens: int) -> torch.Tensor:
    """Waits for a host-lane request, compares its rows with the table's, and frees the slot."""
    slot = region.ring.host_slot(number)
    assert region.wait_ready(slot, 0, 10)
    region.clear_ready(slot, 0)
    rows = region.rows(slot, 0, num_tokens).clone()
    ids = region.ids(slot, 0, num_tokens).flatten()
    assert torch.equal(rows, table.lookup(ids, dtype=torch.uint8))
    region.release(slot, number)
    return rows


def progress(region: Region, number: int) -> int:
    return load_u32(region.progress_address(region.ring.host_slot(number), 0))


def test_progress_is_whole_before_the_flag_and_never_that_of_an_older_request(
    table: Table,
) -> None:
    with served(table) as ((region,), service):
        service.hold(True)
        ask(region, 1, make_batch(1))
        # All rows are in place; the answer is held back.
        wait_until(lambda: progress(region, 1) == progress_of(1, RingFields.PARTS))
        assert not region.wait_ready(region.ring.host_slot(1), 0, 0)
        service.hold(False)
        encoded_rows(region, table, 1, 8)
        for number in range(2, 8):
            slot = region.ring.host_slot(number)
            before = load_u32(region.progress_address(slot, 0))
            assert before < progress_of(number, 1), "a stream that waits for a part would go on"
            ask(region, number, make_batch(number))
            encoded_rows(region, table, number, 8)
            assert progress(region, number) == progress_of(number, RingFields.PARTS)


def test_progress_of_rows_on_disk_comes_with_the_answer(checkpoint: object) -> None:
    with (
        Table.open(checkpoint, placement="host=20KiB,disk") as table,  # type: ignore[arg-type]
        served(table) as ((region,), service),
    ):
        service.hold(True)
        tokens = torch.arange(20)
        batch = Batch(tokens, torch.tensor([0, 20], dtype=torch.int32), is_prefill=True)
        ask(region, 1, batch)
        wait_until(lambda: region.counters()["rows"] == 20 * table.spec.num_heads)
        assert progress(region, 1) < progress_of(1, 1)
        service.hold(False)
        encoded_rows(region, table, 1, 20)
        assert progress(region, 1) == progress_of(1, RingFields.PARTS)


def test_giving_up_ends_the_progress_and_a_late_service_does_not_lower_it(table: Table) -> None:
    with served(table) as ((region,), service):
        service.hold(True)
        ask(region, 1, make_batch(1))
        places, slot = region.ring.input(1), region.ring.host_slot(1)
        wait_until(lambda: region.counters()["rows"] == 8 * 4)
        assert region.abandon(places, 1, 0)
        region.raise_ready(slot, 0, 1)
        assert progress(region, 1) == progress_of(1, RingFields.PARTS)
        service.hold(False)
        wait_until(lambda: region.counters()["late_answers"] == 1)
        assert progress(region, 1) == progress_of(1, RingFields.PARTS)


def test_a_request_given_up_before_it_was_begun_is_passed_over(table: Table) -> None:
    with served(table) as ((region,), service):
        service.hold(True)
        for number in (1, 2):
            ask(region, number, make_batch(number))
        assert region.abandon(region.ring.input(2), 2, 0)
        service.hold(False)
        encoded_rows(region, table, 1, 8)
        wait_until(lambda: region.done(region.ring.host_slot(2)) == 2)
        assert region.counters()["late_answers"] == 0
        assert region.counters()["rows"] == 8 * 4


@pytest.mark.parametrize(
    ("there", "value", "left"),
    [(3, 5, 5), (5, 3, 5), (7, 7, 7), (0xFFFFFFFE, 2, 2), (2, 0xFFFFFFFE, 2)],
)
def test_a_raised_word_is_counted_around_and_never_falls(
    table: Table, there: int, value: int, left: int
) -> None:
    region = Region(ring_shape([table], 1, 1))
    address = region.progress_address(region.ring.host_slots[0], 0)
    store_u32(address, there)
    raise_u32(address, value)
    assert load_u32(address) == left
    region.close()


def test_one_service_of_several_regions_leaves_each_on_its_own(table: Table) -> None:
    with make_table("nvfp4", table_index=1) as other, served(table, other) as (regions, service):
        for number in range(1, 5):
            for region, its_table in zip(regions, (table, other), strict=True):
                ask(region, number, make_batch(number))
                encoded_rows(region, its_table, number, 8)
        first, second = regions
        first.ask_to_stop()
        wait_until(lambda: service.has_left(0))
        assert (first.is_served(), second.is_served()) == (False, True)
        ask(first, 5, make_batch(5))
        ask(second, 5, make_batch(5))
        encoded_rows(second, other, 5, 8)
        assert not first.wait_ready(first.ring.host_slot(5), 0, 0)
        service.stop()
        assert not second.is_served()


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_both_lanes_at_once_share_the_workers(table: Table, num_threads: int) -> None:
    """A stream's batches come while prompt chunks are gathered, with workers between them."""
    with served(table, max_tokens=4096, num_threads=num_threads) as ((region,), _):
        slot = region.ring.stream_slots[0]
        generator = torch.Generator().manual_seed(num_threads)
        number = 0
        for chunk in range(1, 9):
            ask(region, chunk, make_batch(chunk, lengths=(4096,)))
            while not region.wait_ready(region.ring.host_slot(chunk), 0, 0):
                number += 1
                shape = (int(torch.randint(1, 500, (1,), generator=generator)), 4)
                ids = torch.randint(-1, table.spec.num_rows, shape, generator=generator)
                region.ids(slot, 0, ids.shape[0]).copy_(ids)
                region.request_slot(slot, number, ids.shape[0])
                taken = time_answer(
                    region.address + slot.header, region.ready_address(slot, 0), number
                )
                assert taken >= 0
                expected = table.lookup(ids.flatten(), dtype=torch.uint8)
                assert torch.equal(region.rows(slot, 0, shape[0]), expected)
            encoded_rows(region, table, chunk, 4096)
        assert region.counters()["stream_requests"] == number


def test_an_id_out_of_the_table_fails_alone(table: Table) -> None:
    with served(table) as ((region,), _):
        slot = region.ring.stream_slots[0]
        for number, wrong in enumerate((None, table.spec.num_rows, None, -2, None), start=1):
            ids = torch.zeros(3, 4, dtype=torch.int64)
            if wrong is not None:
                ids[1, 2] = wrong
            region.ids(slot, 0, 3).copy_(ids)
            region.request_slot(slot, number, 3)
            region.ring_slot(slot, number)
            assert region.wait_ready(slot, 0, 10)
            region.clear_ready(slot, 0)
            _, failure, _, _, offset = region.answer(slot, 0)
            assert (failure.name, offset) == (("NONE", 0) if wrong is None else ("ROW_ID", 6))
            region.release(slot, number)


def test_settings_decide_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from gramary.offload.service.base import num_service_threads

    for cpus, threads in ((1, 1), (2, 1), (4, 2), (16, 8), (64, 8)):
        monkeypatch.setattr("gramary.offload.service.base.usable_cpus", lambda cpus=cpus: cpus)
        assert num_service_threads(Settings()) == threads
    assert num_service_threads(Settings(num_threads=13)) == 13


def test_a_stopped_service_leaves_no_thread(table: Table) -> None:
    def num_threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = num_threads()
    with served(table, num_threads=4) as (_, service):
        # The two lanes' threads, and three beside them that copy.
        wait_until(lambda: num_threads() == before + 5)
        service.stop()
        assert num_threads() == before


FORK = """
import os, sys
from offload_stage import expected_rows, make_batch, make_table
from gramary import Connector, Settings
import torch
table = make_table()
connector = Connector(table, max_tokens=16, settings=Settings(num_threads=3))
for batch in (make_batch(0), make_batch(1)):
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child died"
    assert torch.equal(connector.wait(connector.request(batch)), expected_rows(table, batch))
print("served", flush=True)
connector.close()
table.close()
"""


def test_a_forked_child_ends_well_and_leaves_its_parents_service_alone() -> None:
    result = run_child(FORK, timeout=60, tears_down=True)
    assert (result.returncode, result.stdout) == (0, "served\n"), result.stderr[-2000:]


CHILD = """
import torch
from offload_stage import codes_within_limits, make_table
from gramary import Batch, Connector
from gramary.errors import UnsupportedError

torch.set_num_threads(1)

def attempt():
    try:
        with make_table() as table, Connector(table, max_tokens=64) as connector:
            starts = torch.tensor([0, 5], dtype=torch.int32)
            batch = Batch(torch.arange(5), starts, is_prefill=torch.tensor([True]))
            rows = connector.wait(connector.request(batch))
            return 0 if torch.equal(rows, table.embed(torch.arange(5), starts)) else 2
    except UnsupportedError as error:
        return 1 if "raise the limit on processes" in str(error) else 2

codes = codes_within_limits(attempt)
assert codes == {0, 1}, codes
"""


WAITING = """
from offload_stage import codes_within_limits, make_table
from gramary.errors import UnsupportedError
from gramary.native.offload import RowService, Tenant
from gramary.offload.memory.region import Region
from gramary.offload.setup import ring_shape
from gramary.offload.service.stores import store_arguments

def attempt():
    regions = [Region(ring_shape([table], 64, 2)) for _ in range(2)]
    stores = (store_arguments(table),)
    service = RowService(
        [
            Tenant(base=it.address, layout=it.ring, stores=stores, hold=it.hold())
            for it in regions
        ],
        num_threads=1,
    )
    try:
        service.start()
        expected, code = True, 0
    except UnsupportedError:
        expected, code = False, 1
    if any(region.is_served() is not expected for region in regions):
        code = 2
    service.stop()
    return code

with make_table() as table:
    codes = codes_within_limits(attempt)
assert codes == {0, 1}, codes
"""


@pytest.mark.needs("superuser")
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(CHILD, marks=pytest.mark.behaviour(36), id="the error"),
        pytest.param(WAITING, id="who waits"),
    ],
)
def test_too_few_processes_are_an_error_and_no_end_of_the_engine(script: str) -> None:
    """Behaviour 36: however many threads of the service can be had; the message names the limit.

    Ranks that wait for the same service are not told that they are served. The superuser becomes
    another user, since a limit on processes counts all of a user's.
    """
    done = run_child(script)
    assert done.returncode == 0, done.stderr
