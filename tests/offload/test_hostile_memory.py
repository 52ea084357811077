"""Kind 20: whatever another process writes into the shared memory, the service serves on.

Inputs given up while the service works on them, words that no engine writes, memory that is no
region, and random bytes all over it while it serves.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from children import run_apart
from offload_stage import (
    expected_rows,
    freeze,
    make_batch,
    make_table,
    mapped_inodes,
    overwritten_by_another_process,
    wait_until,
)
from table_stage import encoded_table, small_spec, write_table_folder

from gramary import Batch, Connector, Settings, Table
from gramary.errors import FetchTimeoutError, GramaryError, RowFetchError, SlotsBusyError
from gramary.native.offload import load_u64, store_u32, store_u64
from gramary.native.ring import Failure, Phase, RingFields, failure_of, state_of
from gramary.offload import RowServer
from gramary.offload.giving_up.fetch_error import failed_answer
from gramary.offload.giving_up.quarantine import Quarantine
from gramary.offload.lanes.direct import DirectLane
from gramary.offload.lanes.host_lane import HostRequests
from gramary.offload.lanes.lane import Claim
from gramary.offload.memory.region import Region
from gramary.offload.setup import ring_shape
from gramary.offload.worker import channel
from gramary.offload.worker.description import describe
from gramary.tracing import SpanLog

SETTINGS = Settings(request_timeout_s=20, num_threads=1)
NUM_INPUTS = 8
VOCAB_SIZE = 97


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    with make_table() as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[RowServer]:
    with RowServer(1, settings=SETTINGS) as opened:
        yield opened


@contextlib.contextmanager
def joined(server: RowServer, table: Table, **sizes: int) -> Iterator[Region]:
    """Gives the region of an engine that a test writes for, word by word."""
    shape = ring_shape([table], sizes.get("max_tokens", 16), sizes.get("num_slots", 1))
    region = Region(shape)
    description, descriptors = describe(region, [table], SETTINGS)
    described = channel.memory_file("test", json.dumps(description).encode())
    connection, _ = channel.connect(server.address, 10)
    with connection:
        socket.send_fds(connection, [channel.JOIN], [described.fileno(), *descriptors])
        described.close()
        wait_until(region.is_served)
        yield region
    region.close()


def require_served(server: RowServer, table: Table) -> None:
    """Requires right rows in both lanes for an engine that comes to the server now."""
    with Connector(
        table, max_tokens=16, worker="process", server=server.address, settings=SETTINGS
    ) as connector:
        for seed in range(4):
            batch = make_batch(seed, prefill=seed % 2 == 0)
            rows = connector.wait(connector.request(batch))
            assert torch.equal(rows, expected_rows(table, batch))
    assert server.why_dead() is None


def await_unmapped(server: RowServer, inode: int) -> None:
    """Returns once the worker has let go of a region."""
    wait_until(lambda: inode not in mapped_inodes(server.process.pid), seconds=20)


# Inputs that were given up.


NUM_BIG = 1 << 19


def give_up_and_ask_again(tables: list[Table], connector: Connector) -> None:
    """Gives large requests up in both ways; their places go to small ones, whose rows are right."""
    starts = torch.tensor([0, NUM_BIG], dtype=torch.int32)
    big = Batch(torch.randint(97, (NUM_BIG,)), starts, is_prefill=True)
    # Of many requests: the loop over requests, and its end, are what may go wrong.
    small = make_batch(1, lengths=(1,) * 16)
    for turn in range(6):
        ticket = connector.request(big)
        if turn % 2:
            connector.wait(ticket, table_index=0)
            connector.release_outputs()
        else:
            connector.cancel(ticket)
        for _ in range(NUM_INPUTS - 1):
            connector.cancel(connector.request(small))
        ticket = connector.request(small)
        for table_index, table in enumerate(tables):
            rows = connector.wait(ticket, table_index=table_index)
            assert torch.equal(rows, expected_rows(table, small)), "another request's rows"


def serve_while_overwritten(table: Table) -> None:
    """Serves by threads while another process writes over the region; then a new one serves."""
    impatient = Settings(request_timeout_s=0.03, num_threads=2)
    for seed in range(3):
        with Connector(table, max_tokens=16, settings=impatient) as connector:
            region = connector._region
            ranges = control_ranges(region)
            with overwritten_by_another_process(region.descriptor, ranges, seed=seed):
                use_broken(connector, 8)
    with Connector(table, max_tokens=16, settings=SETTINGS) as connector:
        batch = make_batch(1)
        assert torch.equal(connector.wait(connector.request(batch)), expected_rows(table, batch))


BY_THREADS = """
import sys
sys.path.insert(0, sys.argv[1])
from test_hostile_memory import (
    NUM_BIG, SETTINGS, give_up_and_ask_again, make_table, serve_while_overwritten
)
from gramary import Connector
tables = [make_table(table_index=index) for index in range(2)]
with Connector(tables, max_tokens=NUM_BIG, num_slots=1, settings=SETTINGS) as connector:
    give_up_and_ask_again(tables, connector)
print("given up", flush=True)
serve_while_overwritten(tables[0])
print("overwritten", flush=True)
"""


@pytest.fixture(scope="module")
def by_threads() -> subprocess.CompletedProcess[str]:
    """What became of a process whose own threads serve it meanwhile."""
    return run_apart(BY_THREADS, Path(__file__).parent)


@pytest.mark.parametrize("worker", ["process", "server"])
def test_kind_20_inputs_given_up_while_they_are_hashed(worker: str, server: RowServer) -> None:
    """By `cancel`, and by `release_outputs` with another table open.

    Their place is given to later requests while the service is still at work on them.
    """
    address = server.address if worker == "server" else None
    with (
        make_table() as first,
        make_table(table_index=1) as second,
        Connector(
            [first, second], max_tokens=NUM_BIG, num_slots=1, worker="process", server=address,
            settings=SETTINGS,
        ) as connector,
    ):  # fmt: skip
        give_up_and_ask_again([first, second], connector)
    assert server.why_dead() is None


def test_kind_20_inputs_given_up_while_our_own_threads_hash_them(
    by_threads: subprocess.CompletedProcess[str],
) -> None:
    assert "given up\n" in by_threads.stdout, by_threads.stderr[-2000:]


def make_lane(table: Table) -> tuple[Region, HostRequests]:
    region = Region(ring_shape([table], 16, num_slots=1))
    return region, HostRequests(region, VOCAB_SIZE, Quarantine(region), SpanLog("engine"))


def make_request(lane: HostRequests, batch: Batch) -> Claim:
    claim = Claim(lane, DirectLane([]), batch.num_tokens, batch.num_requests)
    lane.request(claim, batch)
    return claim


def let_go(region: Region, number: int, claim: Claim) -> None:
    """Gives a request up, as an engine does, without any service."""
    assert region.abandon(region.ring.input(number), number, 0)
    region.release(region.ring.host_slot(number), number)
    claim.is_released = True


def test_kind_20_inputs_that_the_service_copies_are_not_free(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released by the engine alone they stay; the request is refused, and comes through later."""
    monkeypatch.setattr("gramary.offload.lanes.host_lane.TAKE_BACK_S", 0.05)
    region, lane = make_lane(table)
    batch = make_batch(1)
    claim = region.address + region.ring.input(1).header + RingFields.INPUT_CLAIM
    for number in range(1, NUM_INPUTS + 1):
        let_go(region, number, make_request(lane, batch))
    store_u64(claim, state_of(1, Phase.CLAIMED))
    for _ in range(2):
        with pytest.raises(SlotsBusyError, match="still copies the inputs of request 1"):
            make_request(lane, batch)
    store_u64(claim, state_of(1, Phase.IDLE))
    assert make_request(lane, batch).number == NUM_INPUTS + 1
    region.close()


def test_kind_20_inputs_that_the_service_has_not_begun_with_are_taken_back(
    table: Table, server: RowServer
) -> None:
    """The service passes them over, though a later request's inputs lie there by then."""
    with joined(server, table) as region:
        lane = HostRequests(region, VOCAB_SIZE, Quarantine(region), SpanLog("engine"))
        freeze(server.process.pid)
        batch = make_batch(3)
        for number in range(1, NUM_INPUTS + 1):
            let_go(region, number, make_request(lane, make_batch(50 + number)))
        ticket = make_request(lane, batch)
        os.kill(server.process.pid, 18)
        slot = region.ring.host_slot(ticket.number)
        assert region.wait_ready(slot, 0, 10)
        assert region.answer(slot, 0)[:2] == (ticket.number, Failure.NONE)
        rows = region.rows(slot, 0, batch.num_tokens)
        assert torch.equal(
            rows.view(batch.num_tokens, -1), expected_rows(table, batch, torch.uint8)
        )
        wait_until(lambda: region.counters()["host_requests"] == ticket.number)
        assert region.counters()["rows"] == rows.shape[0]


def test_kind_20_a_request_that_nobody_waits_for_is_not_gathered_to_its_end(
    tmp_path: Path,
) -> None:
    """So one rank's cancels do not take the lane from the others for the length of a prompt."""
    spec = small_spec()
    encoded, codec = encoded_table(spec, "fp8")
    folder = write_table_folder(tmp_path, spec, encoded, codec)
    num_tokens = (1 << 18) // spec.num_heads + 1000
    batch = Batch(
        torch.zeros(num_tokens, dtype=torch.int64),
        torch.tensor([0, num_tokens], dtype=torch.int32),
        is_prefill=True,
    )
    with Table.open(folder, placement="disk") as table:
        tier = table.tiers[0]
        tier._reader.set_script(torch.tensor([[0, 300_000, -1, 0]]))  # type: ignore[attr-defined]
        with Connector(table, max_tokens=num_tokens, num_slots=1, settings=SETTINGS) as connector:
            ticket = connector.request(batch)
            wait_until(lambda: tier.stats()["num_batches"] == 1)
            connector.cancel(ticket)
            other = make_batch(1, width=spec.history_length)
            rows = connector.wait(connector.request(other))
            assert torch.equal(rows, expected_rows(table, other))
            # The first piece of the one, the whole of the other, and the table's own.
            assert tier.stats()["num_batches"] == 3


# Words that no engine writes.


def write_host_request(region: Region, number: int, **words: int) -> None:
    """Requests rows of 3 tokens in the host lane, with some words of its inputs changed."""
    batch = make_batch(1, lengths=(2, 1))
    region.write_inputs(
        number,
        batch.token_ids,
        batch.query_start_loc,
        batch.history,
        VOCAB_SIZE,
    )
    header = region.address + region.ring.input(number).header
    for name, value in words.items():
        store_u64(header + getattr(RingFields, name.upper()), value % (1 << 64))
    region.announce(number)


def write_starts(region: Region, *starts: int) -> None:
    places = region.ring.input(1)
    region._view(places.starts, torch.int32, len(starts)).copy_(torch.tensor(starts))


def ask_in_stream(region: Region, number: int, num_tokens: int, row_id: int) -> None:
    slot = region.ring.stream_slots[0]
    region.ids(slot, 0, 2).fill_(row_id)
    region.request_slot(slot, number, 2)
    store_u64(region.address + slot.header + RingFields.SLOT_NUM_TOKENS, num_tokens % (1 << 64))
    region.ring_slot(slot, number)


HOSTILE_COUNTS = [-1, 17, 1 << 31, 1 << 62, -(1 << 63)]
HOSTILE_IDS = [-2, 1 << 62, -(1 << 63), 1 << 40]


@pytest.mark.parametrize("name", ["input_num_tokens", "input_num_requests"])
def test_kind_20_counts_of_inputs_are_checked(server: RowServer, table: Table, name: str) -> None:
    """The request fails, in words; the next one of the same engine is answered."""
    with joined(server, table) as region:
        slot = region.ring.host_slots[0]
        for number, value in enumerate([*HOSTILE_COUNTS, 3 if "tokens" in name else 2], start=1):
            write_host_request(region, number, **{name: value})
            assert region.wait_ready(slot, 0, 10), value
            region.clear_ready(slot, 0)
            answer = region.answer(slot, 0)
            region.release(slot, number)
            expected = Failure.INPUTS if value in HOSTILE_COUNTS else Failure.NONE
            assert answer[:2] == (number, expected), value
        require_served(server, table)


@pytest.mark.parametrize("starts", [(0, 2, 1 << 30), (0, -5, 3), (7, 2, 3), (0, 3, 2)])
def test_kind_20_bounds_of_requests_are_checked(
    server: RowServer, table: Table, starts: tuple[int, ...]
) -> None:
    with joined(server, table) as region:
        slot = region.ring.host_slots[0]
        batch = make_batch(1, lengths=(2, 1))
        region.write_inputs(
            1,
            batch.token_ids,
            batch.query_start_loc,
            batch.history,
            VOCAB_SIZE,
        )
        write_starts(region, *starts)
        region.announce(1)
        assert region.wait_ready(slot, 0, 10)
        assert region.answer(slot, 0)[:2] == (1, Failure.TOKEN)
        require_served(server, table)


def test_kind_20_counts_and_ids_of_the_stream_lane_are_checked(
    server: RowServer, table: Table
) -> None:
    with joined(server, table) as region:
        slot = region.ring.stream_slots[0]
        cases = [(count, 0) for count in HOSTILE_COUNTS] + [(2, row_id) for row_id in HOSTILE_IDS]
        for number, (num_tokens, row_id) in enumerate(cases, start=1):
            ask_in_stream(region, number, num_tokens, row_id)
            assert region.wait_ready(slot, 0, 10), (num_tokens, row_id)
            region.clear_ready(slot, 0)
            answer = region.answer(slot, 0)
            region.release(slot, number)
            assert answer[:2] == (number, Failure.ROW_ID if row_id else Failure.NONE)
        require_served(server, table)


def test_kind_20_row_ids_written_over_while_they_are_gathered(
    server: RowServer, table: Table
) -> None:
    """Of the host lane, whose ids the service writes itself: they lie in the shared memory too."""
    with joined(server, table, max_tokens=1 << 16) as region:
        slot = region.ring.host_slots[0]
        ids = region.ids(slot, 0, 1 << 16)
        tokens = torch.zeros(1 << 16, dtype=torch.int64)
        starts = torch.tensor([0, 1 << 16], dtype=torch.int32)
        for number in range(1, 9):
            region.write_inputs(number, tokens, starts, None, VOCAB_SIZE)
            region.announce(number)
            while not region.wait_ready(slot, 0, 0):
                ids.fill_(HOSTILE_IDS[number % len(HOSTILE_IDS)])
            region.clear_ready(slot, 0)
            assert region.answer(slot, 0)[1] in (Failure.NONE, Failure.ROW_ID)
            region.release(slot, number)
        require_served(server, table)


WORDS = {
    "host_number": RingFields.HOST_NUMBER,
    "service_state": RingFields.SERVICE_STATE,
    "counters": RingFields.COUNTERS,
}
SLOT_WORDS = {
    "released": RingFields.RELEASED,
    "done": RingFields.DONE,
    "state": RingFields.SLOT_STATES,
}


@pytest.mark.parametrize("value", [7, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("name", [*WORDS, *SLOT_WORDS, "slot_number", "stop and go"])
def test_kind_20_words_of_a_region_decide_nothing_for_others(
    server: RowServer, table: Table, name: str, value: int
) -> None:
    """Also while spans are kept, and when the engine leaves: its memory goes then, and not before.

    A service that says in the region that it has left, while it has not, is not believed.
    """
    with joined(server, table) as region:
        inode = os.fstat(region.descriptor).st_ino
        with Connector(
            table, max_tokens=16, worker="process", server=server.address, settings=SETTINGS
        ) as connector:
            connector.trace(True)
            write_host_request(region, 1)
            if name in WORDS:
                store_u64(region.address + WORDS[name], value)
            elif name == "stop and go":
                for word in (1, 0, value % (1 << 32), 0):
                    store_u32(region.address + RingFields.STOP, word)
            else:
                places = region.ring.stream_slots[0]
                offset = SLOT_WORDS.get(name, RingFields.SLOT_NUMBER)
                for slot in (places, region.ring.host_slots[0]):
                    store_u64(region.address + slot.header + offset, value)
            for seed in range(4):
                batch = make_batch(seed, prefill=seed % 2 == 0)
                rows = connector.wait(connector.request(batch))
                assert torch.equal(rows, expected_rows(table, batch))
            assert any(span.lane == "stream" for span in connector.take_spans())
            connector.trace(False)
    await_unmapped(server, inode)
    require_served(server, table)


def test_kind_20_an_engine_that_leaves_is_seen_out_whatever_its_region_says(
    server: RowServer, table: Table
) -> None:
    """It says at once that the service has stopped, or that it must not, over and over."""
    for state in (0, 1, 2, 99):
        with joined(server, table, max_tokens=1 << 16) as region:
            inode = os.fstat(region.descriptor).st_ino
            tokens = torch.zeros(1 << 16, dtype=torch.int64)
            starts = torch.tensor([0, 1 << 16], dtype=torch.int32)
            kept = region.hold()
            region.write_inputs(1, tokens, starts, None, VOCAB_SIZE)
            region.announce(1)
            address = region.address
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            store_u32(address + RingFields.STOP, 0)
            store_u32(address + RingFields.SERVICE_STATE, state)
        await_unmapped(server, inode)
        del kept
    require_served(server, table)


# Memory that is no region.


def unsealed(num_bytes: int) -> int:
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, num_bytes)
    return descriptor


@pytest.mark.parametrize("index", [0, 1], ids=["region", "host rows"])
def test_kind_20_memory_that_could_be_made_shorter_is_refused(
    server: RowServer, table: Table, index: int
) -> None:
    """Its end would be the worker's: reading beyond a file's end kills a process."""
    with contextlib.closing(Region(ring_shape([table], 16, 1))) as region:
        for descriptor in (region.descriptor, table.tiers[0].descriptor):  # type: ignore[attr-defined]
            with pytest.raises(OSError, match="not permitted"):
                os.ftruncate(descriptor, 4096)
            assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        description, descriptors = describe(region, [table], SETTINGS)
        copy = unsealed(os.fstat(descriptors[index]).st_size)
        os.pwrite(copy, os.pread(descriptors[index], 1 << 20, 0), 0)
        descriptors[index] = copy
        answer = refusal(server, description, descriptors)
        os.close(copy)
    assert "sealed against being made shorter" in answer
    require_served(server, table)


def test_kind_20_a_region_that_cannot_be_written_is_refused(
    server: RowServer, table: Table
) -> None:
    with contextlib.closing(Region(ring_shape([table], 16, 1))) as region:
        description, descriptors = describe(region, [table], SETTINGS)
        read_only = os.open(f"/proc/self/fd/{region.descriptor}", os.O_RDONLY)
        answer = refusal(server, description, [read_only, *descriptors[1:]])
        os.close(read_only)
    assert "ermission denied" in answer
    require_served(server, table)


def test_kind_20_a_region_without_room_for_inputs_is_refused(
    server: RowServer, table: Table
) -> None:
    """Requests are found by dividing by the number of entries."""
    with contextlib.closing(Region(ring_shape([table], 16, 1))) as region:
        description, descriptors = describe(region, [table], SETTINGS)
        description["shape"]["num_inputs"] = 0
        assert "num_inputs" in refusal(server, description, descriptors)
    require_served(server, table)


def test_kind_20_a_region_longer_than_its_memory_is_refused_before_it_is_laid_out(
    server: RowServer, table: Table
) -> None:
    """A trillion entries would take the worker's memory, and every rank's service with it."""
    with contextlib.closing(Region(ring_shape([table], 16, 1))) as region:
        description, descriptors = describe(region, [table], SETTINGS)
        description["region"]["num_bytes"] = 1 << 50
        description["shape"]["num_inputs"] = 1 << 40
        assert "longer than its file" in refusal(server, description, descriptors)
    require_served(server, table)


def refusal(server: RowServer, description: dict[str, Any], descriptors: list[int]) -> str:
    """Returns why the worker refuses an engine with such a description."""
    described = channel.memory_file("test", json.dumps(description).encode())
    connection, _ = channel.connect(server.address, 10)
    with connection:
        socket.send_fds(connection, [channel.JOIN], [described.fileno(), *descriptors])
        answer = channel.receive(connection, 10)
    described.close()
    assert answer is not None
    assert answer[0].startswith(channel.REFUSE), answer
    return answer[0].decode()


# What an engine makes of a service's words.


def test_kind_20_answers_that_no_service_writes_are_told_in_words() -> None:
    for failure, errno, file in [(1 << 31, 0, 0), (1, 1 << 31, 1 << 30), (5, 0, 0)]:
        answer = (1, failure_of(failure), errno, file, (1 << 64) - 1)
        error = failed_answer("request 1", 0, answer, ["rows"])
        assert isinstance(error, RowFetchError)
        assert "restart them" in str(error)
    assert failure_of(1 << 31) is Failure.UNKNOWN


# Random bytes all over it.


def control_ranges(region: Region) -> list[tuple[int, int]]:
    """Returns offset and bytes of everything in a region but tokens and rows."""
    layout = region.ring
    ranges = [(0, RingFields.REGION_HEADER_BYTES)]
    for slot in (*layout.host_slots, *layout.stream_slots):
        ranges += [(slot.header, RingFields.SLOT_HEADER_BYTES)]
        ranges += [(answer, RingFields.ANSWER_BYTES) for answer in slot.answers]
        ranges += [(ids, 512) for ids in slot.ids]
    for entry in layout.inputs:
        ranges += [(entry.header, RingFields.INPUT_HEADER_BYTES), (entry.starts, 64)]
        ranges += [(entry.history, 64)]
    return ranges


def use_broken(connector: Connector, num_requests: int) -> None:
    """Makes requests through a connector whose memory is written over: errors of ours, or rows."""
    for seed in range(num_requests):
        with contextlib.suppress(GramaryError):
            connector.check()
        for prefill in (True, False):
            with contextlib.suppress(GramaryError):
                ticket = connector.request(make_batch(seed, prefill=prefill))
                with contextlib.suppress(FetchTimeoutError):
                    connector.wait(ticket) if seed % 3 else connector.cancel(ticket)
        with contextlib.suppress(GramaryError):
            connector.stats()
            connector.release_outputs()


def test_kind_20_random_bytes_from_another_process_do_not_crash_the_engine(
    by_threads: subprocess.CompletedProcess[str],
) -> None:
    """The service runs on its threads; it is another connector's turn afterwards."""
    told = (by_threads.returncode, by_threads.stdout)
    assert told == (0, "given up\noverwritten\n"), by_threads.stderr[-3000:]


def test_kind_20_random_bytes_in_one_ranks_region_take_nothing_from_the_others(
    server: RowServer, table: Table
) -> None:
    """The other rank's rows are right all the while; the broken one leaves, and a third comes."""
    words: dict[str, Any] = {"worker": "process", "server": server.address}
    with Connector(table, max_tokens=16, settings=SETTINGS, **words) as healthy:
        for seed in range(3):
            impatient = Settings(request_timeout_s=0.02, num_threads=1)
            with Connector(table, max_tokens=16, settings=impatient, **words) as broken:
                region = broken._region
                inode = os.fstat(region.descriptor).st_ino
                with overwritten_by_another_process(
                    region.descriptor, control_ranges(region), seed=seed
                ):
                    for number in range(12):
                        use_broken(broken, 1)
                        batch = make_batch(number, prefill=number % 2 == 0)
                        rows = healthy.wait(healthy.request(batch))
                        assert torch.equal(rows, expected_rows(table, batch))
            await_unmapped(server, inode)
    require_served(server, table)


def test_kind_20_random_words_from_one_thread_do_not_take_the_lane(
    server: RowServer, table: Table
) -> None:
    """As above, with words instead of bytes: numbers near those that the protocol uses."""
    chance = random.Random(1)
    values = [0, 1, 2, 8, 9, 12, 13, (1 << 32) - 1, 1 << 63, (1 << 64) - 1]
    with joined(server, table) as region:
        offsets = [
            offset
            for begin, size in control_ranges(region)
            for offset in range(begin, begin + size, 8)
        ]
        for number in range(1, 400):
            for _ in range(20):
                store_u64(region.address + chance.choice(offsets), chance.choice(values))
            write_host_request(region, number)
            ask_in_stream(region, number, 2, 0)
        assert load_u64(region.address) is not None
        require_served(server, table)
