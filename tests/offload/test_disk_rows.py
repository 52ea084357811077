"""Rows on disk, and split between host and disk, through the connector."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from offload_stage import expected_rows

from gramary import Batch, Connector, Settings, Table
from gramary.errors import RowFetchError

QUICK = Settings(request_timeout_s=20, num_threads=2)


def random_batch(table: Table, seed: int, *, prefill: bool) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(table.spec.vocab_size, (40,), generator=generator)
    starts = torch.tensor([0, 25, 40], dtype=torch.int32)
    return Batch(tokens, starts, is_prefill=prefill)


@pytest.mark.parametrize("placement", ["disk", "host=20KiB,disk"])
@pytest.mark.parametrize("worker", ["thread", "process"])
def test_the_same_rows_from_every_placement(checkpoint: Path, placement: str, worker: str) -> None:
    with (
        Table.open(checkpoint) as resident,
        Table.open(checkpoint, placement=placement) as table,
        Connector(table, max_tokens=64, worker=worker, settings=QUICK) as connector,  # type: ignore[arg-type]
    ):
        for seed in range(4):
            batch = random_batch(table, seed, prefill=seed % 2 == 0)
            rows = connector.wait(connector.request(batch))
            assert torch.equal(rows, expected_rows(resident, batch))


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("prefill", [True, False])
def test_a_file_that_shrinks_fails_its_requests_by_name(
    copy_checkpoint: Callable[..., Path], prefill: bool
) -> None:
    """Behaviour 32: file and offset are told, results are NaN, and opening again makes it well."""
    path = copy_checkpoint(codec="fp8")
    with (
        Table.open(path) as resident,
        Table.open(path, placement="disk") as table,
        Connector(table, max_tokens=64, settings=QUICK) as connector,
    ):
        resident_rows = resident.lookup(torch.arange(8))
        disk = table.residency.disk
        assert disk is not None
        files = sorted({file.path for file in disk.layout.files})
        sizes = {file: os.path.getsize(file) for file in files}
        batch = random_batch(table, 1, prefill=prefill)
        contents = {file: Path(file).read_bytes() for file in files}
        times = {file: os.stat(file).st_mtime_ns for file in files}
        for file in files:
            os.truncate(file, 100)
        out = torch.zeros(40, table.spec.embed_dim, dtype=torch.float32)
        ticket = connector.request(batch)
        with pytest.raises(RowFetchError, match="at byte") as caught:
            connector.wait(ticket, out=out)
        assert caught.value.file in files
        assert 0 < caught.value.offset < sizes[caught.value.file]
        assert out.isnan().all()
        for file in files:
            with open(file, "r+b") as opened:
                opened.write(contents[file])
            os.utime(file, ns=(times[file],) * 2)
        # They were written to, whatever they hold now and whatever time they say (kind 14).
        out = torch.zeros(40, table.spec.embed_dim, dtype=torch.float32)
        with pytest.raises(RowFetchError) as caught:
            connector.wait(connector.request(batch), out=out)
        assert caught.value.errno == errno.ESTALE
        assert out.isnan().all()
    with Table.open(path, placement="disk") as table:
        row_ids = torch.arange(8)
        assert torch.equal(table.lookup(row_ids), resident_rows)


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("prefill", [True, False])
@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL, 0])
def test_a_failing_read_is_told_with_file_offset_and_errno(
    checkpoint: Path, code: int, prefill: bool
) -> None:
    """Behaviour 32: EIO, others, and a short read (errno 0); every second request is well."""
    with (
        Table.open(checkpoint) as resident,
        Table.open(checkpoint, placement="host=20KiB,disk") as table,
        Connector(table, max_tokens=64, settings=QUICK) as connector,
    ):
        tier = table.residency.disk
        assert tier is not None
        faults = [(number, 1000, code, 0) for number in range(0, 8, 2)]
        tier._reader.set_script(torch.tensor(faults))
        for seed in range(8):
            batch = random_batch(table, seed, prefill=prefill)
            out = torch.zeros(40, table.spec.embed_dim)
            ticket = connector.request(batch)
            if seed % 2:
                connector.wait(ticket, out=out)
                assert torch.equal(out, expected_rows(resident, batch, torch.float32))
                continue
            with pytest.raises(RowFetchError, match="restart them") as caught:
                connector.wait(ticket, out=out)
            error, told = caught.value, str(caught.value)
            assert error.errno == code
            assert error.file in {file.path for file in tier.layout.files}
            assert 0 <= error.offset < os.path.getsize(error.file)
            why = os.strerror(code) if code else "short read"
            for part in ("2 request(s), 40 token(s)", error.file, f"byte {error.offset}", why):
                assert part in told
            assert out.isnan().all()
        assert connector.stats()["failures"] == 4
