"""Kind 13: too few file descriptors are named as that, with the limit and what is needed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from children import run_child
from descriptor_stage import free_numbers
from offload_stage import expected_rows, make_batch, make_table
from table_stage import encoded_table, small_spec, write_table_folder

from gramary import Connector, Settings, Table
from gramary.cli import probes
from gramary.cli.app import run
from gramary.cli.descriptor_room import probe_descriptors
from gramary.cli.doctor import examine
from gramary.errors import CheckpointError, DescriptorLimitError, RowFetchError, UnsupportedError
from gramary.files.source import open_source
from gramary.native.raw_disk import lane_shape
from gramary.offload import RowServer
from gramary.process.descriptor_limit import count_open, naming_shortage, too_few
from gramary.storage.descriptor_needs import NUM_TO_SPARE, num_descriptors

SPEC = small_spec()
QUICK = Settings(request_timeout_s=20)
MAIN = "import sys, descriptor_stage; descriptor_stage.main(*sys.argv[1:])"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoded, codec = encoded_table(SPEC, "fp8")
    return write_table_folder(tmp_path_factory.mktemp("model"), SPEC, encoded, codec)


@pytest.mark.behaviour(8)
@pytest.mark.remedy("raise the limit: `ulimit -n 65536`")
def test_kind_13_every_public_call_names_the_limit(folder: Path, tmp_path: Path) -> None:
    """Behaviour 8 too: however many are left, what failed leaves nothing open."""
    with tempfile.TemporaryDirectory(prefix="gramary-test-", dir="/dev/shm") as share:
        done = run_child(MAIN, folder, tmp_path, env=dict(os.environ, GRAMARY_SHARE_FOLDER=share))
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout
    assert "too few file descriptors for direct reads, large batches go through the page" in said
    assert re.search(r"at most \d+ may be open in this process \(ulimit -n\), and \d+ more", said)


@pytest.mark.parametrize("placement", ["disk", "host", "host=10000,disk"])
@pytest.mark.parametrize("direct_io", [True, False])
def test_kind_13_what_is_needed_is_what_is_opened(
    folder: Path, placement: str, direct_io: bool
) -> None:
    settings = Settings(direct_io=direct_io)
    layout = open_source(folder).layout
    before = count_open()
    with Table.open(folder, placement=placement, settings=settings) as table:
        opened = (count_open() or 0) - (before or 0)
        tiers = [tier.name for tier in table.tiers]
    needed = num_descriptors(layout, tiers, settings)
    assert opened <= needed <= opened + NUM_TO_SPARE + len(layout.files) + 3 + lane_shape()[0]


@contextlib.contextmanager
def at_most(num_more: int) -> Iterator[int]:
    """Lets the block open so many descriptors more; gives the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = free_numbers()[num_more]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_kind_13_doctor_and_plan_look_at_the_given_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def findings(model: Path | None) -> dict[str, Any]:
        found = probe_descriptors(model, Settings())
        return {finding.name: finding for finding in found}

    needed = num_descriptors(open_source(folder).layout, ["disk"], Settings())
    (enough,) = findings(folder).values()
    assert enough.answer == "yes"
    assert f"{needed} needed; " in enough.detail
    assert findings(None)["file descriptors"].answer == ""
    with at_most(needed - 1) as limit:
        (short,) = findings(folder).values()
        assert run(["plan", str(folder), "--placement", "disk"]) == 2
    assert short.answer == "no"
    assert f"at most {limit} may be open (ulimit -n)" in short.detail
    assert short.remedy.startswith("raise the limit: `ulimit -n")
    said = capsys.readouterr()
    assert f"file descriptors  {needed} needed; at most {limit} may be open" in said.out
    words = " ".join(said.err.split())
    assert "too few file descriptors to open what was planned" in words
    assert f"and this call needs {needed} more" in words
    assert run(["plan", str(folder), "--placement", "disk"]) == 0
    assert "file descriptors" in capsys.readouterr().out


def test_kind_13_doctor_shows_it_beside_the_other_ways_of_reading(folder: Path) -> None:
    names = [finding.name for finding in examine(folder) if finding.section == "reading from disk"]
    assert names == ["positioned reads", "io_uring", "direct reads", "file descriptors"]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_kind_13_doctor_does_not_take_it_for_a_missing_o_direct(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(probes, "try_direct_read", lambda _: code)
    (direct,) = [f for f in probes.probe_reading(folder) if f.name == "direct reads"]
    assert direct.answer == "unknown"
    assert "raise the limit" in direct.remedy


@pytest.mark.remedy("raise that limit: sysctl fs.file-max")
def test_kind_13_the_limit_of_the_machine_is_another_one() -> None:
    """ENFILE cannot be brought about here without harm to other processes: the words alone."""
    with (
        pytest.raises(DescriptorLimitError, match=r"fs\.file-max\), and this call needs 9 more"),
        naming_shortage("open the table", lambda: 9),
    ):
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
    assert isinstance(too_few("open it", errno.ENFILE), UnsupportedError)


def test_kind_13_whatever_words_it_came_in() -> None:
    """Deep inside it became another error; what came of something else is left as it is."""
    shortage = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def fail(cause: OSError) -> None:
        try:
            raise CheckpointError("model.safetensors: cannot be read") from cause
        except CheckpointError as error:
            raise RowFetchError("the row service did not start") from error

    with pytest.raises(DescriptorLimitError) as caught, naming_shortage("make a connector"):
        fail(shortage)
    assert isinstance(caught.value.__cause__, RowFetchError)
    with pytest.raises(RowFetchError), naming_shortage("make a connector"):
        fail(OSError(errno.ENOENT, "no file"))


def test_kind_13_a_worker_says_it_too_and_others_are_served_on() -> None:
    """The worker has a limit of its own; an engine that comes too late hears of it."""
    with RowServer(1, settings=QUICK) as server, make_table() as table:
        words: dict[str, Any] = {
            "max_tokens": 16, "worker": "process", "server": server.address, "settings": QUICK
        }  # fmt: skip
        pid = server.process.pid
        with Connector(table, **words) as first:
            # Answered once it has closed what came with the connector.
            first.trace(False)
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            free = free_numbers(pid)
            # It takes a connection, then the description, the region and the rows.
            for num_more in (1, 2, 3):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[num_more], hard))
                with pytest.raises(RowFetchError, match=r"\(ulimit -n\)"):
                    Connector(table, **words)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            batch = make_batch(1)
            assert torch.equal(first.wait(first.request(batch)), expected_rows(table, batch))
            with Connector(table, **words) as second:
                assert torch.equal(second.wait(second.request(batch)), expected_rows(table, batch))
