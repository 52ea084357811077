"""One worker process for several ranks: rows, one copy of them, deaths that hurt nobody else."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from children import Child, run_child, start_child
from offload_stage import (
    expected_rows,
    freeze,
    is_alive,
    make_batch,
    make_table,
    mapped_inodes,
    wait_until,
)
from table_stage import encoded_table, small_spec, write_table_folder

from gramary import Connector, Settings, Table
from gramary.errors import ArgumentError, RowFetchError
from gramary.native.offload import RowService
from gramary.offload import RowServer
from gramary.offload.memory.region import Region
from gramary.offload.setup import ring_shape
from gramary.offload.worker import channel
from gramary.offload.worker.description import describe
from gramary.offload.worker.serving import Worker

SETTINGS = Settings(request_timeout_s=20, num_threads=1)

RANK = """
import json, os, sys
import torch
from offload_stage import expected_rows, make_batch, make_table
from gramary import Connector, Settings
from gramary.errors import RowFetchError
table = make_table(table_index=int(sys.argv[2]))
settings = Settings(request_timeout_s=20, num_threads=1)
connector = Connector(
    table, max_tokens=600, worker="process", server=sys.argv[1], settings=settings
)
inode = os.fstat(table.tiers[0].descriptor).st_ino
print(json.dumps({"inode": inode, "worker": connector.service.pid}), flush=True)
for line in sys.stdin:
    if line.startswith("leave"):
        break
    if line.startswith("ask"):
        connector.request(make_batch(0, lengths=(500, 30)))
    try:
        for seed in range(int(line.split()[1])):
            batch = make_batch(seed, lengths=(500, 30), prefill=seed % 2 == 0)
            rows = connector.wait(connector.request(batch))
            assert torch.equal(rows, expected_rows(table, batch))
        print(json.dumps("ok"), flush=True)
    except RowFetchError as error:
        print(json.dumps(str(error)), flush=True)
connector.close()
"""

OWNER = """
import sys, time
from gramary.offload import RowServer
server = RowServer(1)
print(server.address, server.process.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """`start(code, ...)`: a process that does not outlive the test."""
    with contextlib.ExitStack() as started:

        def make(code: str, *arguments: object) -> Child:
            child = start_child(code, *arguments)
            started.callback(child.close)
            return child

        yield make


@pytest.fixture(scope="module")
def server() -> Iterator[RowServer]:
    with RowServer(1, settings=SETTINGS) as opened:
        yield opened


def test_two_engines_share_a_worker_and_a_death_hurts_no_other(start: Any) -> None:
    """Each gets its own rows from one process, which maps the ranks' pages and copies none."""
    with RowServer(2, settings=SETTINGS) as server:
        pid = server.process.pid
        ranks = [start(RANK, server.address, rank) for rank in range(2)]
        told = [json.loads(rank.hear()) for rank in ranks]
        assert [rank["worker"] for rank in told] == [pid, pid]
        assert {rank["inode"] for rank in told} <= mapped_inodes(pid)
        for rank in ranks:
            rank.tell("run 20")
        assert [json.loads(rank.hear()) for rank in ranks] == ["ok", "ok"]
        # With a request under way, and the other rank's too.
        ranks[0].tell("ask 1000000")
        ranks[1].tell("run 100")
        ranks[0].close()
        assert json.loads(ranks[1].hear()) == "ok"
        wait_until(lambda: told[0]["inode"] not in mapped_inodes(pid), seconds=20)
        assert told[1]["inode"] in mapped_inodes(pid)
        # Its successor comes late, and is served.
        ranks[0] = start(RANK, server.address, 0)
        json.loads(ranks[0].hear())
        for rank in ranks:
            rank.tell("run 4")
        assert [json.loads(rank.hear()) for rank in ranks] == ["ok", "ok"]
        for rank in ranks:
            rank.tell("leave")
            assert rank.wait(30) == 0
        wait_until(lambda: told[1]["inode"] not in mapped_inodes(pid), seconds=20)
        assert is_alive(pid)
    assert not is_alive(pid)
    assert not os.path.exists(os.path.dirname(server.address))


def join_together(server: RowServer, *tables: Table) -> list[Connector]:
    """Returns a connector of each table; none is served before the last has come."""
    made: dict[int, Connector] = {}
    words: dict[str, Any] = {"worker": "process", "server": server.address, "settings": SETTINGS}

    def join(rank: int) -> None:
        made[rank] = Connector(tables[rank], max_tokens=16, **words)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(len(tables))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[rank] for rank in range(len(tables))]


def test_a_killed_worker_is_found_by_every_rank_within_a_second() -> None:
    with (
        RowServer(2, settings=SETTINGS) as server,
        make_table() as first,
        make_table("bf16", table_index=1) as second,
    ):
        tables = (first, second)
        connectors = join_together(server, *tables)
        for seed, (table, connector) in enumerate(zip(tables, connectors, strict=True)):
            batch = make_batch(seed)
            rows = connector.wait(connector.request(batch))
            assert torch.equal(rows, expected_rows(table, batch))
        pid = server.process.pid
        freeze(pid)
        tickets = [connector.request(make_batch(1)) for connector in connectors]
        os.kill(pid, signal.SIGKILL)
        for connector, ticket in zip(connectors, tickets, strict=True):
            began = time.monotonic()
            with pytest.raises(RowFetchError, match=f"worker process {pid} ended"):
                connector.wait(ticket)
            assert time.monotonic() - began < 1
            with pytest.raises(RowFetchError, match=f"worker process {pid} ended"):
                connector.request(make_batch(2))
            connector.close()
        assert "was killed by signal 9" in str(server.why_dead())
    assert not os.path.exists(os.path.dirname(server.address))


def test_the_worker_outlives_its_owner_while_it_serves(start: Any) -> None:
    owner = start(OWNER)
    address, worker = owner.hear().split()
    rank = start(RANK, address, 0)
    rank.hear()
    owner.close()
    rank.tell("run 10")
    assert json.loads(rank.hear()) == "ok"
    assert is_alive(int(worker))
    rank.close()
    wait_until(lambda: not is_alive(int(worker)), seconds=20)
    assert not os.path.exists(os.path.dirname(address))


@pytest.mark.behaviour(8)
def test_connectors_come_and_go_and_leave_nothing(server: RowServer, tmp_path: Path) -> None:
    """Behaviour 8: the worker's descriptors, mappings and threads are those of before."""

    def counts() -> tuple[int, int, int]:
        root = Path(f"/proc/{server.process.pid}")
        memory = sum("memfd:gramary" in line for line in (root / "maps").read_text().splitlines())
        return len(list((root / "fd").iterdir())), memory, len(list((root / "task").iterdir()))

    spec = small_spec()
    encoded, codec = encoded_table(spec, "fp8")
    folder = write_table_folder(tmp_path, spec, encoded, codec)
    words: dict[str, Any] = {"worker": "process", "server": server.address, "settings": SETTINGS}
    batch = make_batch(1)
    with Table.open(folder, placement="host=10KiB,disk") as table:
        seen = []
        for _ in range(12):
            with Connector(table, max_tokens=16, **words) as connector:
                rows = connector.wait(connector.request(batch))
                assert torch.equal(rows, expected_rows(table, batch))
            wait_until(lambda: counts()[1] == 0, seconds=20)
            seen.append(counts())
    # The first connectors load what is loaded once.
    wait_until(lambda: counts()[0] <= seen[2][0] and counts()[2] <= seen[2][2], seconds=20)


def test_what_comes_to_the_socket_and_is_no_engine_harms_nobody(server: RowServer) -> None:
    """Words that mean nothing, descriptors that are no region, and half a connection."""
    assert os.stat(os.path.dirname(server.address)).st_mode & 0o777 == 0o700
    assert os.stat(server.address).st_mode & 0o777 == 0o600
    null = os.open("/dev/null", os.O_RDWR)
    listed = channel.memory_file("test", b"[1, 2]")
    with make_table() as table:
        for message, descriptors in [
            (b"x" * 100, []), (channel.JOIN, []), (channel.JOIN, [null]), (channel.SPANS, []),
            (channel.numbered(channel.SPANS, 1), []), (channel.numbered(b"what", 1), []),
            (channel.JOIN, [null] * 5), (channel.JOIN, [listed.fileno(), null]), (channel.STOP, []),
            (b"", []),
        ]:  # fmt: skip
            connection, pid = channel.connect(server.address, 10)
            assert pid == server.process.pid
            socket.send_fds(connection, [message], descriptors)
            if message == channel.JOIN:
                answer = channel.receive(connection, 10)
                assert answer is not None
                assert answer[0].startswith(channel.REFUSE)
            connection.close()
        os.close(null)
        listed.close()
        with Connector(
            table, max_tokens=16, worker="process", server=server.address, settings=SETTINGS
        ) as connector:
            batch = make_batch(3)
            rows = connector.wait(connector.request(batch))
            assert torch.equal(rows, expected_rows(table, batch))


def changed(description: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Returns a copy of a description with another value at a path of keys."""
    copy: Any = json.loads(json.dumps(description))
    *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = copy
    for key in keys:
        place = place[key]
    place[last] = value
    return copy


WRONG_DESCRIPTIONS = [
    ("version", 99), ("tables", []), ("tables", None), ("tables.0.host.num_rows", {}),
    ("shape.max_tokens", 16.0), ("shape.row_bytes", [32.0]), ("shape.num_stream_slots", -1),
    ("region.descriptor", 1), ("region.descriptor", -1), ("region.descriptor", 9),
    ("region.num_bytes", 1 << 40), ("region.num_bytes", 4096), ("region.num_bytes", "x"),
    ("shape.max_tokens", 1 << 20), ("shape.max_tokens", -1),
    ("shape.max_requests", 1 << 20), ("shape.history_length", 1), ("shape.history_length", 4),
    ("shape.num_host_slots", 1 << 40), ("shape.num_inputs", 1 << 40),
    ("shape.num_heads", [40]), ("shape.num_heads", [4, 4]), ("shape.row_bytes", [1 << 20]),
    ("tables.0.row_bytes", 0), ("tables.0.row_bytes", 1 << 20), ("tables.0.row_bytes", "x"),
    ("tables.0.spec.vocab_size", 1 << 80), ("tables.0.spec.heads_per_ngram", 3),
    ("tables.0.spec.ngram_size", 9), ("tables.0.spec.rows_multiple", 0),
    ("tables.0.host.num_rows", 1 << 40), ("tables.0.host.num_rows", -1),
    ("tables.0.host.first_row", -1), ("tables.0.host.first_row", 1),
    ("tables.0.host.num_bytes", 1 << 40), ("tables.0.host.num_bytes", 64),
    ("tables.0.host.descriptor", 9), ("tables.0.disk", {"first_row": 0, "num_rows": 1}),
    ("settings.num_threads", -4), ("settings", None),
]  # fmt: skip


def test_a_description_that_does_not_fit_is_refused_and_harms_nobody(server: RowServer) -> None:
    """Whatever a rank says of its memory, the worker reads and writes nothing beside it."""
    with (
        make_table() as table,
        Connector(
            table, max_tokens=16, worker="process", server=server.address, settings=SETTINGS
        ) as connector,
        contextlib.closing(Region(ring_shape([table], 16, 2))) as region,
    ):
        right, descriptors = describe(region, [table], SETTINGS)
        for seed, (path, value) in enumerate(WRONG_DESCRIPTIONS):
            described = channel.memory_file(
                "test", json.dumps(changed(right, path, value)).encode()
            )
            connection, _ = channel.connect(server.address, 10)
            with connection:
                socket.send_fds(connection, [channel.JOIN], [described.fileno(), *descriptors])
                answer = channel.receive(connection, 10)
            described.close()
            assert answer is not None, (path, value)
            assert answer[0].startswith(channel.REFUSE), (path, value, answer)
            batch = make_batch(seed)
            rows = connector.wait(connector.request(batch))
            assert torch.equal(rows, expected_rows(table, batch)), (path, value)
        assert server.why_dead() is None


@pytest.mark.parametrize("num_free", range(4))
def test_kind_13_a_worker_out_of_descriptors_serves_on_and_says_why_it_refuses(
    server: RowServer, num_free: int
) -> None:
    """Whoever comes meanwhile is refused with the limit's name, or let in once there is room."""
    words: dict[str, Any] = {"worker": "process", "server": server.address, "settings": SETTINGS}
    batch, pid = make_batch(1), server.process.pid

    def come() -> str:
        try:
            with Connector(table, max_tokens=16, **words) as other:
                return str(torch.equal(other.wait(other.request(batch)), expected))
        except RowFetchError as error:
            return str(error)

    with make_table() as table, Connector(table, max_tokens=16, **words) as connector:
        expected = expected_rows(table, batch)
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
        free = sorted(set(range(len(used) + num_free + 1)) - used)
        with ThreadPoolExecutor(1) as others:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[num_free], limits[1]))
            late = others.submit(come)
            for _ in range(10):
                assert torch.equal(connector.wait(connector.request(batch)), expected)
                time.sleep(0.02)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            answer = late.result()
        assert answer == "True" or "(ulimit -n)" in answer
        assert come() == "True"


def test_a_service_that_cannot_start_refuses_its_newcomer_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The machine has no thread left for it: who is served, or waits, is not hurt."""
    attempts: list[int] = []

    class Scarce(RowService):
        def start(self) -> None:
            attempts.append(1)
            if len(attempts) in (1, 3):
                raise RuntimeError("no thread is left")
            super().start()

    monkeypatch.setattr("gramary.offload.worker.serving.RowService", Scarce)
    address = str(tmp_path / "rows")
    listener, (ours, theirs) = channel.listen(address, 8), socket.socketpair()
    worker = Worker(listener, theirs, 1, SETTINGS)
    words: dict[str, Any] = {"worker": "process", "server": address, "settings": SETTINGS}
    with make_table() as table, ThreadPoolExecutor(1) as thread, listener, ours, theirs:
        served = thread.submit(worker.run)
        try:
            with pytest.raises(RowFetchError, match="no thread is left"):
                Connector(table, max_tokens=16, **words)
            with Connector(table, max_tokens=16, **words) as connector:
                with pytest.raises(RowFetchError, match="no thread is left"):
                    Connector(table, max_tokens=16, **words)
                for seed in range(4):
                    batch = make_batch(seed, prefill=bool(seed % 2))
                    rows = connector.wait(connector.request(batch))
                    assert torch.equal(rows, expected_rows(table, batch))
        finally:
            ours.send(channel.STOP)
            served.result()


def test_spans_of_the_worker_come_to_the_engine(server: RowServer) -> None:
    with (
        make_table() as table,
        Connector(
            table, max_tokens=16, worker="process", server=server.address, settings=SETTINGS
        ) as connector,
    ):
        connector.trace(True)
        connector.wait(connector.request(make_batch(1)))
        spans = connector.take_spans()
        assert connector.take_spans() == []
    (gathered,) = [span for span in spans if span.name == "gather"]
    (asked,) = [span for span in spans if span.name == "write_inputs"]
    # One clock for both processes.
    assert asked.begin_ns <= gathered.begin_ns <= gathered.end_ns
    assert gathered.track == "service, host lane"


def test_mistakes_are_named(server: RowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="num_ranks: expected an integer from 1 to 4096, got 0"):
        RowServer(0)
    with pytest.raises(ArgumentError, match="settings: expected a Settings, got 'fast'"):
        RowServer(1, settings="fast")  # type: ignore[arg-type]
    words: dict[str, Any] = {"max_tokens": 8, "settings": SETTINGS}
    with make_table() as table:
        with pytest.raises(ArgumentError, match="expected worker='process' beside it"):
            Connector(table, server=server.address, **words)
        words["worker"] = "process"
        with pytest.raises(ArgumentError, match=r"expected RowServer\.address, a path"):
            Connector(table, server=server, **words)  # type: ignore[arg-type]
        with pytest.raises(RowFetchError, match=r"/nowhere: no row server answers there"):
            Connector(table, server="/nowhere", **words)
        with RowServer(2, settings=SETTINGS) as lonely:
            channel.connect(lonely.address, 30)[0].close()
            monkeypatch.setattr("gramary.offload.service.process.RANKS_TIMEOUT_S", 0.2)
            with pytest.raises(RowFetchError, match=r"waits for other ranks after 0\.2 s"):
                Connector(table, server=lonely.address, **words)
        with pytest.raises(RowFetchError, match="no row server answers there"):
            Connector(table, server=lonely.address, **words)


def test_a_table_that_the_worker_cannot_open_is_refused_with_its_reason(
    server: RowServer, tmp_path: Path
) -> None:
    spec = small_spec()
    encoded, codec = encoded_table(spec, "fp8")
    tmp_path.joinpath("model").mkdir()
    folder = write_table_folder(tmp_path / "model", spec, encoded, codec)
    with Table.open(folder, placement="disk") as table:
        # The folder, not the file: a file that was renamed is another one from then on.
        moved = folder.rename(tmp_path / "moved")
        with pytest.raises(RowFetchError, match=r"did not start: .*model\.safetensors"):
            Connector(
                table, max_tokens=8, worker="process", server=server.address, settings=SETTINGS
            )
        moved.rename(folder)
        with Connector(
            table, max_tokens=8, worker="process", server=server.address, settings=SETTINGS
        ) as connector:
            batch = make_batch(2, lengths=(4,))
            rows = connector.wait(connector.request(batch))
            assert torch.equal(rows, expected_rows(table, batch))


def test_a_long_temporary_folder_does_not_make_a_long_socket_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with RowServer(1, settings=SETTINGS) as server:
        channel.connect(server.address, 30)[0].close()
    assert list(long.iterdir()) == []


FORKING = """
import os, sys
from offload_stage import expected_rows, make_batch, make_table
from gramary import Connector
from gramary.offload import RowServer
table = make_table()
connector = Connector(table, max_tokens=16, worker="process")
child = os.fork()
if child == 0:
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7
batch = make_batch(1)
assert connector.wait(connector.request(batch)).equal(expected_rows(table, batch))
connector.close()
print("ok")
"""


def test_a_forked_child_that_ends_leaves_the_worker_alone() -> None:
    done = run_child(FORKING, timeout=60, tears_down=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
