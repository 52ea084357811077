"""The doctor: every answer is yes, no or unknown, and every no says what to do."""

import errno
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gramary.cli import main, probes
from gramary.cli.doctor import examine
from gramary.cli.probes import Finding
from gramary.settings import Settings


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["doctor", *words])
    return left.value.code or 0


def find(findings: object, name: str) -> Finding:
    """Returns the finding of that name."""
    return next(finding for finding in findings if finding.name == name)


@pytest.mark.behaviour(36)
def test_every_no_and_unknown_names_a_remedy() -> None:
    """Behaviour 36: the report says what to do next."""
    findings = list(examine(None))
    assert {finding.answer for finding in findings} <= {"yes", "no", "unknown", ""}
    for finding in findings:
        assert finding.detail, finding
        assert bool(finding.remedy) == (finding.answer in ("no", "unknown")), finding


def test_the_report_covers_what_a_placement_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    text = capsys.readouterr().out
    names = ("gramary", "torch", "C++ compiler", "available memory", "cgroup", "locked memory")
    names += ("io_uring", "direct reads", "CUDA", "device", "host", "disk", "share=NAME")
    for name in names:
        assert name in text


def test_json_is_the_same_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in printed] == [finding.name for finding in examine(None)]


def test_a_model_that_does_not_exist_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "no/such/model") == 2
    assert "no/such/model does not exist" in capsys.readouterr().err


def test_direct_reads_are_tried_on_the_largest_file(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "large").write_bytes(b"x" * 8192)
    finding = find(probes.probe_reading(tmp_path), "direct reads")
    assert finding.answer in ("yes", "no")
    assert "large" in finding.detail


def test_a_file_that_cannot_be_read_gives_its_error_number(tmp_path: Path) -> None:
    assert probes.try_direct_read(tmp_path / "missing") == errno.ENOENT


def test_io_uring_is_really_asked_for(tmp_path: Path) -> None:
    """With the very file, where it can be read, else with one of our own; refusals: test_uring."""
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "table").write_bytes(b"x" * 4096)
    answers = [probes.try_reading_by_ring(file) for file in (None, tmp_path / "table")]
    assert answers[0] == answers[1] == probes.try_reading_by_ring(tmp_path / "missing")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EPERM, "seccomp"),
        (errno.EACCES, "security module"),
        (errno.ENOSYS, "5.6 or newer"),
        (errno.EINVAL, "5.6 or newer"),
        (errno.ENOMEM, "ulimit -l"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "pread"),
    ],
)
def test_each_refusal_of_io_uring_has_its_remedy(
    monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    monkeypatch.setattr(probes, "_IO_URING_SWITCH", Path("/nowhere"))
    finding = probes._describe_io_uring("reading", code, "io_uring_setup: refused")
    assert (finding.answer, finding.detail) == ("no", "io_uring_setup: refused; pread is used")
    assert words in finding.remedy


def test_io_uring_that_the_kernel_allows_tells_what_it_lacks() -> None:
    assert probes._describe_io_uring("reading", 0, "").detail == "the kernel allows it"
    finding = probes._describe_io_uring("reading", 0, "buffers are not registered")
    assert (finding.answer, finding.remedy) == ("yes", "")
    assert finding.detail == "the kernel allows it; buffers are not registered"


def test_the_kernels_own_switch_is_named(monkeypatch, tmp_path: Path) -> None:
    """A seccomp profile that is changed in vain costs a day."""
    switch = tmp_path / "io_uring_disabled"
    monkeypatch.setattr(probes, "_IO_URING_SWITCH", switch)
    for value, words in (("2\n", "kernel.io_uring_disabled is 2"), ("0\n", "seccomp")):
        switch.write_text(value)
        assert words in probes._describe_io_uring("reading", errno.EPERM, "refused").remedy


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    return lambda: monkeypatch.setattr(importlib.metadata, "version", version)


def test_a_missing_package_names_its_extra(without_packages: Callable[[], None]) -> None:
    without_packages()
    finding = find(probes.probe_versions(), "transformers")
    assert finding.answer == "no"
    assert "gramary[transformers]" in finding.remedy


def test_no_compiler_names_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes.shutil, "which", lambda _: None)
    assert "apt install g++" in find(probes.probe_build(), "C++ compiler").remedy


def test_a_small_lock_limit_is_a_no_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    room = probes.read_host_room(Settings())
    limited = type(room)(available_bytes=1 << 34, lock_bytes=64 << 20)
    monkeypatch.setattr(probes, "read_host_room", lambda _: limited)
    finding = find(probes.probe_memory(Settings()), "locked memory")
    assert finding.answer == "no"
    assert "64.0 MiB" in finding.detail
    assert "ulimit -l unlimited" in finding.remedy


def test_a_machine_that_hides_its_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from gramary.errors import UnsupportedError

    def refuse(_: Settings) -> None:
        raise UnsupportedError("no MemAvailable")

    monkeypatch.setattr(probes, "read_host_room", refuse)
    assert find(probes.probe_placements(Settings()), "host").answer == "unknown"


def test_without_shared_memory_share_is_a_no(tmp_path: Path) -> None:
    finding = probes._describe_sharing("placements", tmp_path / "nowhere")
    assert finding.answer == "no"
    assert "tmpfs" in finding.remedy


@pytest.mark.parametrize("why_not", [None, "the driver lacks them"])
def test_how_streams_wait_is_told(monkeypatch: pytest.MonkeyPatch, why_not: str | None) -> None:
    import torch

    name = "gramary.offload.cuda.streams.why_no_memory_operations"
    monkeypatch.setattr(name, lambda _device: why_not)
    finding = probes.describe_waiting("GPUs", torch.device("cuda", 0))
    assert finding.answer == ("no" if why_not else "yes")
    assert ("newer driver" in finding.remedy) == bool(why_not)
    assert why_not is None or why_not in finding.detail


def test_streams_without_cuda_bindings_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    finding = probes.describe_waiting("GPUs", torch.device("cuda", 0))
    assert finding.answer == "no"
    assert "gramary[cuda]" in finding.remedy
