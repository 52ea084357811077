"""Receipts of counted runs, and the tools that write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from receipt_stage import make_run

from benchmarks import counts, machine
from benchmarks.receipts import schema as receipts
from benchmarks.receipts.errors import ReceiptError

SOURCES = ("benchmarks/counts.py",)
COMMIT = "c" * 40


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where receipts go that no other place is named for."""
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_runs_are_written_and_judged(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["python", "-m", "benchmarks.counts", "/some/where/x.json"]
    runs = [make_run(), make_run(failures=["row 3 is wrong"])]
    assert counts.write_counts("a_run", SOURCES, words, lambda: runs[:1], revision=COMMIT)
    receipt = receipts.read(results / "a_run.json")
    assert receipt["revision"] == {"commit": COMMIT, "clean": True}
    assert receipt["command"][-1] == "x.json"
    assert receipt["runs"] == runs[:1]
    assert not counts.write_counts("a_run", SOURCES, words, lambda: runs, revision=COMMIT)
    assert "row 3 is wrong\nreceipt: a_run.json\n" in capsys.readouterr().out
    assert receipts.read(results / "a_run.json")["runs"] == runs


def test_sources_are_those_that_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed meanwhile, they are not what was measured."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("1")
    before = machine.hash_sources(["a.py"])

    def take_runs() -> list[dict[str, Any]]:
        (tmp_path / "a.py").write_text("2")
        return [make_run()]

    out = tmp_path / "new" / "r.json"
    counts.write_counts("a_run", ["a.py"], ["python"], take_runs, revision=COMMIT, out=out)
    assert receipts.read(out)["sources"] == before


def test_a_smoke_is_judged_and_leaves_no_receipt_unasked(results: Path, tmp_path: Path) -> None:
    words = ("a_run", SOURCES, ["python"])
    assert counts.write_counts(*words, lambda: [make_run()], smoke=True)
    with pytest.raises(ReceiptError, match="nothing"):
        counts.write_counts(*words, lambda: [make_run(counts={})], smoke=True)
    assert not results.exists()
    out = tmp_path / "asked.json"
    assert counts.write_counts(*words, lambda: [make_run()], smoke=True, out=out)
    assert out.exists()
