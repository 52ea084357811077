"""The tool that runs the tests in other environments: what it takes away, keeps and tells."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from children import run_child
from receipt_stage import make_run

from benchmarks.receipts import schema as receipts
from tools import check_environments
from tools.environments import catalogue, checkout
from tools.environments import environment as environments
from tools.environments.environment import Environment, NotHereError, Place

REPORT = """\
<testsuites><testsuite name="pytest" tests="4" time="2.5">
<testcase classname="tests.test_a" name="test_one"/>
<testcase classname="tests.test_a" name="test_two"><skipped message="needs avx2: none"/></testcase>
<testcase classname="tests.test_b" name="test_one"><skipped message="needs avx2: none"/></testcase>
<testcase classname="tests.test_b" name="test_two"><skipped message="too long here"/></testcase>
</testsuite></testsuites>
"""


def in_child(script: str) -> None:
    """Runs a script that changes its process for good."""
    done = run_child("from tools.environments.confine import *\n" + script)
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("io_uring", "seccomp")
def test_one_cpu_and_no_ring_are_left() -> None:
    in_child("""
import abilities
keep_one_cpu()
assert len(os.sched_getaffinity(0)) == 1
assert abilities.ABILITIES["io_uring"].__wrapped__() is None
forbid_io_uring()
assert "not permitted" in abilities.why_missing("io_uring")
""")


@pytest.mark.needs("namespaces")
def test_nothing_is_left_of_the_network_but_loopback() -> None:
    in_child("""
leave_network()
assert [name for _, name in socket.if_nameindex()] == ["lo"]
with socket.create_server(("127.0.0.1", 0)) as listening:
    socket.create_connection(listening.getsockname()).close()
""")


@pytest.mark.needs("namespaces", "superuser")
def test_a_user_without_rights_owns_the_tree_and_little_else(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    in_child(f"""
program = '''
import os
assert os.geteuid() not in (0, {__import__("os").getuid()})
try:
    open({str(tmp_path / "locked" / "file")!r}, "w")
except PermissionError:
    pass
else:
    raise SystemExit("rights are left")
open({str(tmp_path / "file")!r}, "w").close()
'''
main(["--without-rights", "--", sys.executable, "-I", "-S", "-c", program])
""")
    assert (tmp_path / "file").exists()


@pytest.mark.needs("superuser")
def test_nobody_is_another_user() -> None:
    in_child("""
become_nobody()
assert (os.getresuid(), os.getgroups()) == ((NOBODY,) * 3, [])
""")


def test_a_command_is_printed_as_one_would_type_it() -> None:
    place = Place(Path("/a b"), Path("/a b/python"), ["--one-cpu"], {"NAME": "it's"})
    typed = place.as_typed(["-m", "pytest"])
    assert typed.startswith("cd '/a b' && NAME='it'\"'\"'s' ")
    assert typed.endswith("tools.environments.confine --one-cpu -- '/a b/python' -m pytest")
    here = Place(python=Path("/opt/x/bin/python3"))
    assert here.as_typed(["-m", "pytest"]) == "/opt/x/bin/python3 -m pytest"
    assert Place().command(["-m", "pytest"]) == [sys.executable, "-m", "pytest"]


def test_the_list_has_every_environment(capsys: pytest.CaptureFixture[str]) -> None:
    check_environments.main(["--list"])
    told = capsys.readouterr().out
    for environment in catalogue.ENVIRONMENTS:
        assert f"{environment.name} " in told
        assert environment.what in told


def test_an_environment_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check_environments.main(["moon"])
    assert "no environment 'moon'" in capsys.readouterr().err


def test_a_python_that_is_not_here_is_named() -> None:
    with pytest.raises(NotHereError, match=r"no python3\.99 on the PATH"):
        checkout.find_python("3.99")


def test_skipped_tests_are_counted_by_what_they_need() -> None:
    report = ElementTree.fromstring(REPORT)
    assert check_environments.count_missing_abilities(report) == {"skipped, needs avx2": 2}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three environments, one of which is not here; returns the names of those that were run."""
    ran: list[str] = []

    def refuse(_folder: Path) -> Place:
        raise NotHereError("no interpreter in /usr/bin")

    def run(environment: Environment, _place: Place, _tests: list[str]) -> dict[str, Any]:
        ran.append(environment.name)
        failures = ["test_a::test_b"] if environment.name == "bad" and len(ran) < 3 else []
        return make_run() | {"name": environment.name, "failures": failures}

    made = [Environment(name, name, lambda _: Place()) for name in ("good", "bad")]
    monkeypatch.setattr(environments, "STATE", tmp_path / "state")
    monkeypatch.setattr(
        check_environments, "ENVIRONMENTS", (*made, Environment("gone", "gone", refuse))
    )
    monkeypatch.setattr(check_environments, "run_tests", run)
    monkeypatch.setattr(check_environments.machine, "RESULTS", tmp_path)
    return ran


def test_it_goes_on_where_it_stopped(stage: list[str], tmp_path: Path) -> None:
    """What passed is not run again while the tree is the same; what failed is."""
    for code in (1, 0):
        with pytest.raises(SystemExit) as ended:
            check_environments.main([])
        assert ended.value.code == code
    assert stage == ["good", "bad", "bad"]
    receipt = receipts.read(tmp_path / "environments.json")
    assert [run["name"] for run in receipt["runs"]] == ["good", "bad"]
    assert receipt["runs"][0]["parameters"]["not here: gone"] == "no interpreter in bin"
    with pytest.raises(SystemExit):
        check_environments.main(["--again", "good"])
    assert stage[3:] == ["good"]


def test_fewer_tests_give_no_receipt(stage: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(SystemExit):
            check_environments.main(["good", "--", "tests/native", "-x"])
    assert stage == ["good"]
    assert not (tmp_path / "environments.json").exists()
    kept = json.loads((tmp_path / "state" / "good" / "result.json").read_text())
    assert kept["tests"] == ["tests/native", "-x"]
