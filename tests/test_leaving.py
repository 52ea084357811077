"""Kind 8: an interpreter that ends, in whatever way and with whoever inside, crashes nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import leaving_stage
import pytest
from children import run_apart

PROGRAM = """
import functools
from leaving_stage import CALLS, WAYS, leave_from_inside, leave_with_all_inside, main
stories = {way: functools.partial(leave_with_all_inside, way) for way in WAYS}
stories |= {call: functools.partial(leave_from_inside, call) for call in CALLS}
main(stories)
"""


@pytest.fixture(scope="module")
def ends() -> dict[str, tuple[int, str]]:
    """How each program ended, by its name: exit code and what it said."""
    done = run_apart(PROGRAM, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


# A crash, or an object that is left behind, by those who tell of it.
COMPLAINTS = re.compile("nanobind|leaked|Fatal|terminate called|core dumped|could not end with")


@pytest.mark.parametrize("way", leaving_stage.WAYS)
def test_kind_8_every_way_of_leaving(ends: dict[str, tuple[int, str]], way: str) -> None:
    """Threads are inside `wait`, `embed`, `lookup` and `Table.open` meanwhile."""
    code, said = ends[way]
    assert code == leaving_stage.WAYS[way][1], said[-2000:]
    assert not COMPLAINTS.search(said), said


@pytest.mark.parametrize("call", leaving_stage.CALLS)
def test_kind_8_a_daemon_thread_inside_each_call(
    ends: dict[str, tuple[int, str]], call: str
) -> None:
    code, said = ends[call]
    assert code == 5, said[-2000:]
    assert not COMPLAINTS.search(said), said


def test_kind_8_the_interpreter_lock_is_let_go_of_in_one_way() -> None:
    """nanobind's own way ends the process where a daemon thread comes back too late."""
    core = Path(__file__).parent.parent / "csrc"
    assert [path for path in core.rglob("*.?pp") if "gil_scoped_release" in path.read_text()] == []
