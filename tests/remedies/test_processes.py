"""Kind 16: advice of objects that other processes cannot have, and of machines that refuse them."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from children import run_child
from offload_stage import expected_rows, make_batch, make_table

from gramary import Connector, Settings, Table
from gramary.errors import CheckpointError, RowFetchError, UnsupportedError
from gramary.offload import RowServer
from gramary.offload.worker.tenancy import require_length_stays

SETTINGS = Settings(request_timeout_s=20, num_threads=1)


@pytest.mark.remedy("pass its address on, for Connector(server=address)")
def test_kind_16_a_server_is_handed_on_by_its_address() -> None:
    with RowServer(1, settings=SETTINGS) as server, make_table() as table:
        advice = re.escape("pass its address on, for Connector(server=address)")
        with pytest.raises(UnsupportedError, match=advice):
            pickle.dumps(server)
        address = pickle.loads(pickle.dumps(server.address))
        with Connector(
            table, max_tokens=16, worker="process", server=address, settings=SETTINGS
        ) as connector:
            batch = make_batch(1)
            assert torch.equal(
                connector.wait(connector.request(batch)), expected_rows(table, batch)
            )


@pytest.mark.remedy("use worker='thread' there")
def test_kind_16_memory_that_cannot_be_sealed_serves_threads() -> None:
    """A worker process refuses it; a connector's own threads need no seal."""
    descriptor = os.memfd_create("unsealed")
    try:
        with pytest.raises(RowFetchError, match="use worker='thread' there"):
            require_length_stays(descriptor, is_region=True)
    finally:
        os.close(descriptor)
    with (
        make_table() as table,
        Connector(table, max_tokens=16, worker="thread", settings=SETTINGS) as connector,
    ):
        batch = make_batch(1)
        assert torch.equal(connector.wait(connector.request(batch)), expected_rows(table, batch))


@pytest.mark.remedy(
    "open it where it is used with Table.open(path)",
    "open the table with Table.open(path) where it is used",
)
def test_kind_16_a_table_that_cannot_be_pickled_is_opened_there(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "model"
    path.symlink_to(make_checkpoint(codec="fp8"))
    ids = torch.tensor([3, 1])
    with Table.open(path, placement="host") as held:
        with pytest.raises(UnsupportedError, match=r"open it where it is used with Table\.open"):
            pickle.dumps(held)
        rows = held.lookup(ids)
    with Table.open(path, placement="disk") as table:
        pickled = pickle.dumps(table)
    with pickle.loads(pickled) as again:
        assert torch.equal(again.lookup(ids), rows)
    path.unlink()
    path.symlink_to(make_checkpoint(codec="bf16"))
    advice = r"open the table with Table\.open\(path\) where it is used"
    with pytest.raises(CheckpointError, match=advice):
        pickle.loads(pickled)
    with Table.open(path, placement="disk") as table:
        assert table.lookup(ids).shape == rows.shape


LIMITED = """
import os, resource
from offload_stage import make_batch, make_table
from gramary import Connector
from gramary.errors import UnsupportedError
from thread_limit import start_no_more_than

most = resource.getrlimit(resource.RLIMIT_NPROC)
start_no_more_than(0, is_final=False)
with make_table() as table:
    try:
        Connector(table, max_tokens=16)
    except UnsupportedError as error:
        assert "raise the limit on processes (ulimit -u" in str(error), error
    else:
        raise AssertionError("it has threads")
    resource.setrlimit(resource.RLIMIT_NPROC, (most[1], most[1]))
    with Connector(table, max_tokens=16) as connector:
        connector.wait(connector.request(make_batch(1)))
"""


@pytest.mark.remedy("raise the limit on processes")
def test_kind_16_a_limit_on_processes_is_raised() -> None:
    done = run_child(LIMITED)
    assert done.returncode == 0, done.stderr
