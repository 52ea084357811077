"""The tool that writes a receipt of a test run."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import record_tests
from receipt_stage import make_run

from benchmarks.receipts import schema as receipts

REPORT = """\
<testsuites><testsuite name="pytest" tests="4" time="2.5">
<testcase classname="tests.test_a" name="test_one" time="0.5"/>
<testcase classname="tests.test_a" name="test_two" time="0.5"><failure message="no"/></testcase>
<testcase classname="tests.test_b" name="test_one"><skipped message="no GPU"/></testcase>
<testcase classname="tests.test_b" name="test_two"><error message="set-up"/></testcase>
</testsuite></testsuites>
"""


def test_outcomes_are_counted_and_failures_named() -> None:
    run = record_tests.count_outcomes(ElementTree.fromstring(REPORT))
    assert run["counts"] == {"passed": 1, "failed": 2, "skipped": 1, "passed in tests.test_a": 1}
    assert run["failures"] == ["tests.test_a::test_two", "tests.test_b::test_two"]
    assert run["seconds"] == 2.5


def test_a_run_is_read_from_pytest(tmp_path) -> None:
    file = tmp_path / "test_small.py"
    file.write_text("def test_good():\n    pass\n\n\ndef test_bad():\n    assert False\n")
    report = record_tests.run_tests([str(file), "-p", "no:cacheprovider"])
    run = record_tests.count_outcomes(report)
    assert run["counts"]["passed"] == 1
    assert run["counts"]["failed"] == 1


def test_pytests_words_may_stand_around_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "c" * 40
    seen: list[list[str]] = []
    monkeypatch.setattr(record_tests, "run_tests", seen.append)
    monkeypatch.setattr(record_tests, "count_outcomes", lambda _: make_run())
    out = tmp_path / "r.json"
    words = ["gpu_tests", "-m", "gpu and not slow", "--out", str(out), "tests", "-x"]
    with pytest.raises(SystemExit) as ended:
        record_tests.main([*words, "--revision", commit])
    assert not ended.value.code
    assert seen == [["-m", "gpu and not slow", "tests", "-x"]]
    assert receipts.read(out)["revision"]["commit"] == commit
