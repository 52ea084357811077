"""Numbers that look measured name a receipt; receipts say when their code has changed since."""

import hashlib
from pathlib import Path

import check_numbers
import list_stale_receipts
import pytest

from benchmarks import machine


@pytest.mark.parametrize("text", [
    "It takes 2.5 µs.", "It reads 20 GB/s.", "It is 3 times as fast.", "a ratio of 1.4x",
    "| work | 12 ms |\n|---|---|\n| b | 3 |", "35 M rows/s, whatever the page", "in 3 seconds",
])  # fmt: skip
def test_a_measured_number_needs_a_receipt(text: str) -> None:
    assert list(check_numbers.find_unfounded(text, {"a.json"}))
    named = f"{text}\n(`a.json`)"
    assert list(check_numbers.find_unfounded(named, {"a.json"})) == []
    assert list(check_numbers.find_unfounded(named, {"b.json"}))
    assert list(check_numbers.find_unfounded(f"{text} {check_numbers.CHOSEN}", set())) == []
    assert list(check_numbers.find_unfounded(f"{text}\n\nnear, not here: `a.json`", {"a.json"}))


@pytest.mark.parametrize("text", [
    "48 GiB of rows", "heads 0-7 and 16 rows", "`--timeout 10 s`", "```\nsleep 10 ms\n```",
    "Python 3.11 or newer", "4096 bytes", "at 2^31 tokens", "H200s", "version 0.33.0",
])  # fmt: skip
def test_other_numbers_need_none(text: str) -> None:
    assert list(check_numbers.find_unfounded(text, set())) == []


def test_the_line_is_that_of_the_page() -> None:
    text = "# A\n\n```\ncode\n```\n\none\ntwo 5 ms\n"
    assert list(check_numbers.find_unfounded(text, set())) == [(8, "5 ms")]


def test_every_number_of_the_pages_names_its_receipt() -> None:
    receipts = {path.name for path in machine.RESULTS.glob("*.json")}
    for page in check_numbers.pages():
        found = list(check_numbers.find_unfounded(page.read_text(), receipts))
        assert found == [], f"{page.name}: see tools/check_numbers.py"


def test_a_receipt_is_stale_once_a_source_differs_or_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "b.py").write_text("1")
    digest = hashlib.sha256(b"1").hexdigest()
    receipt = {"sources": dict.fromkeys(("a.py", "b.py", "c.py"), digest)}
    (tmp_path / "b.py").write_text("2")
    assert list_stale_receipts.changed_sources(receipt, tmp_path) == ["b.py", "c.py"]
