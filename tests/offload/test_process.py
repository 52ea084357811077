"""The worker process: the same rows, one copy of them, and a named death."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from children import start_child
from offload_stage import expected_rows, freeze, is_alive, make_batch, make_table, wait_until

from gramary import Connector, Settings, Table
from gramary.errors import DescriptorLimitError, FetchTimeoutError, RowFetchError

QUICK = Settings(request_timeout_s=20, num_threads=1)


@pytest.fixture(autouse=True)
def real_worker(start_real_worker: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts workers as users do: that is what these tests are about."""
    monkeypatch.setattr("gramary.offload.service.server.start_worker", start_real_worker)


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    with make_table() as opened:
        yield opened


def test_rows_equal_the_tables_in_both_lanes(table: Table) -> None:
    with Connector(table, max_tokens=16, worker="process", settings=QUICK) as connector:
        for seed in range(6):
            batch = make_batch(seed, prefill=seed % 2 == 0)
            rows = connector.wait(connector.request(batch))
            assert torch.equal(rows, expected_rows(table, batch))
        stats = connector.stats()
        assert (stats["host_requests"], stats["stream_requests"]) == (3, 3)
        pid = connector.service.process.pid
        maps = Path(f"/proc/{pid}/maps").read_text()
    assert not is_alive(pid)
    # The rows are mapped from the engine's own memory file.
    assert re.search(r"memfd:gramary", maps)


@pytest.mark.behaviour(32)
def test_a_killed_worker_is_found_within_a_second_and_named(table: Table) -> None:
    """Behaviour 32: every request under way, in both lanes, is NaN and names how it ended."""
    with Connector(table, max_tokens=16, worker="process", settings=QUICK) as connector:
        pid = connector.service.process.pid
        freeze(pid)
        tickets = [connector.request(make_batch(i, prefill=i < 2)) for i in range(3)]
        assert [ticket.lane for ticket in tickets] == ["host", "host", "stream"]
        os.kill(pid, signal.SIGKILL)
        for ticket in tickets:
            began = time.monotonic()
            out = torch.zeros(8, table.spec.embed_dim)
            why = f"worker process {pid} was killed by signal 9"
            with pytest.raises(FetchTimeoutError, match=why):
                connector.wait(ticket, out=out)
            assert time.monotonic() - began < 1
            assert out.isnan().all()
        with pytest.raises(RowFetchError, match=f"worker process {pid}"):
            connector.request(make_batch(1))


def test_closing_behind_a_killed_worker_hangs_nobody(table: Table) -> None:
    connector = Connector(table, max_tokens=16, worker="process", settings=QUICK)
    connector.request(make_batch(0))
    connector.service.process.kill()
    began = time.monotonic()
    connector.close()
    assert time.monotonic() - began < 2


def test_a_worker_that_cannot_start_says_why(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gramary.offload.memory.ring.VERSION", 999)
    with pytest.raises(RowFetchError, match="version 999 of the ring"):
        Connector(table, max_tokens=16, worker="process", settings=QUICK)


def test_modules_of_the_folder_we_stand_in_do_not_hide_the_workers(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine did not import them, so the worker must not either."""
    for name in ("json", "socket", "torch", "gramary", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    with Connector(table, max_tokens=16, worker="process", settings=QUICK) as connector:
        batch = make_batch(1)
        assert torch.equal(connector.wait(connector.request(batch)), expected_rows(table, batch))


def test_a_worker_that_ends_at_once_says_why(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gramary.py").write_text("raise SystemExit('this is another gramary')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RowFetchError, match=r"ended with code 1: this is another gramary"):
        Connector(table, max_tokens=16, worker="process", settings=QUICK)


def test_kind_13_an_engine_out_of_descriptors_says_so_and_leaves_nothing(table: Table) -> None:
    """However many are left: either all of it works, or an error of ours names the limit."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = Path("/proc/self/fd")
    words: dict[str, Any] = {"max_tokens": 16, "worker": "process", "settings": QUICK}
    used = {int(path.name) for path in folder.iterdir()}
    for num_free in (*range(12), 20):
        free = sorted(set(range(len(used) + num_free + 1)) - used)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[num_free], limits[1]))
        try:
            with Connector(table, **words) as connector:
                batch = make_batch(1)
                rows = connector.wait(connector.request(batch))
                assert torch.equal(rows, expected_rows(table, batch))
            told = "served"
        except DescriptorLimitError as error:
            told = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        limit = f"at most {free[num_free]} may be open in this process (ulimit -n)"
        assert told == "served" or limit in told
        assert len(list(folder.iterdir())) <= len(used)
    assert told == "served"


ENGINE = """
import sys, time
from offload_stage import make_table
from gramary import Connector, Settings
table = make_table()
connector = Connector(table, max_tokens=4, worker="process", settings=Settings(num_threads=1))
print(connector.service.process.pid, flush=True)
time.sleep(60)
"""


def test_the_worker_ends_with_its_engine() -> None:
    engine = start_child(ENGINE)
    worker = int(engine.hear())
    assert is_alive(worker)
    engine.close()
    # A busy machine takes its time to end a process; one that stays is what fails.
    wait_until(lambda: not is_alive(worker), seconds=30)
