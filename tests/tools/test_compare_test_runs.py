"""The tool that compares two runs of the tests."""

from pathlib import Path

import pytest

from tools import compare_test_runs

OLD = """\
<testsuites><testsuite name="pytest" tests="4" time="9">
<testcase classname="tests.test_a" name="test_same" time="4"/>
<testcase classname="tests.test_a" name="test_gone" time="1"/>
<testcase classname="tests.test_b" name="test_needs" time="2"/>
<testcase classname="tests.test_b" name="test_was_red" time="2"><failure message="no"/></testcase>
<testcase classname="tests.test_b" name="test_skipped" time="0"><skipped message="gpu"/></testcase>
</testsuite></testsuites>
"""
NEW = """\
<testsuites><testsuite name="pytest" tests="4" time="9">
<testcase classname="tests.test_a" name="test_same" time="1"/>
<testcase classname="tests.test_a" name="test_same" time="1"><error message="teardown"/></testcase>
<testcase classname="tests.test_a" name="test_new" time="1"/>
<testcase classname="tests.test_b" name="test_needs" time="0"><skipped message="no"/></testcase>
<testcase classname="tests.test_b" name="test_was_red" time="1"/>
<testcase classname="tests.test_b" name="test_skipped" time="0"><skipped message="gpu"/></testcase>
</testsuite></testsuites>
"""


def test_what_is_lost_is_named_and_times_are_those_of_tests_that_both_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "old.xml", tmp_path / "new.xml"]
    for path, text in zip(paths, (OLD, NEW), strict=True):
        path.write_text(text)
    monkeypatch.setattr("sys.argv", ["compare", *map(str, paths)])
    with pytest.raises(SystemExit) as ended:
        compare_test_runs.main()
    assert ended.value.code == 1
    told = capsys.readouterr().out.splitlines()
    assert told[:3] == [
        "failed, was passed: tests.test_a::test_same",
        "gone: tests.test_a::test_gone",
        "skipped, was passed: tests.test_b::test_needs",
    ]
    assert "8.0 s      2.0 s  4 tests of both runs, 0.250 of before" in told[-2]
    assert told[-1] == "3 lost, 1 new"
    monkeypatch.setattr("sys.argv", ["compare", str(paths[0]), str(paths[0])])
    with pytest.raises(SystemExit) as ended:
        compare_test_runs.main()
    assert not ended.value.code
