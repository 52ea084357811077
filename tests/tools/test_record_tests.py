"""The tool that writes a receipt of a test run."""

import xml.etree.ElementTree as ElementTree

import record_tests

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
