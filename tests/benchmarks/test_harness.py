"""The benchmark framework: check before timing, alternation, receipts without this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import harness, machine, peak
from benchmarks.receipts import schema as receipts
from benchmarks.run import find_benchmarks
from benchmarks.timers import CpuTimer


def make_case(calls: list[str], check: object = lambda: 3) -> harness.Case:
    return harness.Case(
        name="tiny",
        parameters={"n": 1},
        candidates={"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        baseline="a",
        check=check,
        checked="a equals b",
        moved_bytes=8,
        cache_note="nothing to cache",
        targets={"b": 1e9},
        timer=CpuTimer(once=True),
        num_samples=4,
    )


def make_benchmark(case: harness.Case | harness.MeasuredCase) -> harness.Benchmark:
    def build(smoke: bool) -> Iterator[harness.Case | harness.MeasuredCase]:
        assert smoke in (True, False)
        yield case

    return harness.Benchmark(name="tiny", build=build, sources=["benchmarks/timers.py"])


def test_candidates_alternate_forwards_and_backwards() -> None:
    calls: list[str] = []
    case = harness.measure(make_case(calls))
    assert "".join(calls) == "ab" + "ba" + "ab" + "ba"
    assert len(case["candidates"]["a"]["samples"]) == 4


def test_a_failing_check_stops_before_any_timing() -> None:
    calls: list[str] = []

    def check() -> int:
        raise AssertionError("rows differ at 7")

    with pytest.raises(AssertionError, match="rows differ at 7"):
        harness.measure(make_case(calls, check))
    assert calls == []


def test_a_run_gives_a_valid_receipt(tmp_path: Path) -> None:
    receipt = harness.run(
        make_benchmark(make_case([])), commit="a" * 40, clean=True, command=["/usr/bin/python"]
    )
    receipts.write(receipt, tmp_path / "tiny.json")
    assert receipt["revision"] == {"commit": "a" * 40, "clean": True}
    assert receipt["command"] == ["python"]
    assert "benchmarks/timers.py" in receipt["sources"]


def test_the_command_line_writes_the_receipt(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    words = ["--revision", "b" * 40, "--out", str(path), "--smoke"]
    harness.main(make_benchmark(make_case([])), words)
    text = path.read_text()
    assert receipts.read(path)["revision"] == {"commit": "b" * 40, "clean": False}
    assert str(tmp_path) not in text
    assert json.loads(text)["command"][:3] == ["python", "-m", "benchmarks.tiny"]


def test_measured_cases_bring_their_own_samples() -> None:
    case = harness.MeasuredCase(
        name="load",
        parameters={},
        samples={"allowed": [100], "load": [80, 90]},
        baseline="allowed",
        check=lambda: 1,
        checked="rows equal",
        moved_bytes=100,
        cache_note="fresh process",
    )
    measured = harness.measure(case)
    assert measured["unit"] == "bytes"
    assert measured["ratios"] == {"load": 0.85}


def test_a_tree_outside_git_has_an_unknown_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.describe_revision(None, None) == {"commit": None, "clean": None}


def test_a_command_keeps_its_words_but_for_folders() -> None:
    words = ["python", "-m", "a.b", "--out=/a/b/c.json", "/tmp/x/", "a/b.json", "--clean", "x=1"]
    assert [machine.without_folder(word) for word in words] == [
        "python", "-m", "a.b", "--out=c.json", "x", "a/b.json", "--clean", "x=1",
    ]  # fmt: skip


def test_a_source_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="no/such"):
        machine.hash_sources(["no/such/*.cpp"])


def test_peak_memory_is_seen_even_after_it_was_freed() -> None:
    grown = peak.measure_peak_bytes("benchmarks.peak:touch_bytes", num_bytes=64 << 20)
    assert 60 << 20 <= grown <= 100 << 20


def test_a_failing_child_is_reported() -> None:
    with pytest.raises(RuntimeError, match="no_such_function"):
        peak.measure_peak_bytes("benchmarks.peak:no_such_function")


def test_every_benchmark_is_named_after_its_module() -> None:
    for name, benchmark in find_benchmarks()[0].items():
        assert benchmark.name == name
        assert benchmark.needs in ("cpu", "cuda")
        assert machine.hash_sources(benchmark.sources)
