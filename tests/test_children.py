"""The children of tests: as processes of their own, and told of as such."""

import os
import signal
import subprocess
import time

import pytest
from children import run_child, start_child


def test_what_it_says_and_how_it_ends_are_told() -> None:
    done = run_child("import sys; print(sys.argv[1:]); sys.exit(int(sys.argv[2]))", "a b", 7)
    assert (done.returncode, done.stdout, done.stderr) == (7, "['a b', '7']\n", "")
    done = run_child("import sys; sys.exit('a reason')", tears_down=True)
    assert (done.returncode, done.stderr) == (1, "a reason\n")
    done = run_child("print('before'); 1 / 0")
    assert (done.returncode, done.stdout) == (1, "before\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert run_child("import os; os.abort()").returncode == -signal.SIGABRT


def test_it_has_what_a_fresh_process_has() -> None:
    """One thread, no descriptor but its streams, the variables it was given, this folder."""
    script = """
import os, torch, gramary
print(len(os.listdir("/proc/self/task")), sorted(map(int, os.listdir("/proc/self/fd")))[:-1])
print(dict(os.environ), os.getcwd(), __name__)
"""
    done = run_child(script, env={"ANSWER": "42"})
    assert done.stdout == f"1 [0, 1, 2]\n{{'ANSWER': '42'}} {os.getcwd()} __main__\n", done.stderr


def test_what_one_does_to_itself_the_next_does_not_see() -> None:
    script = """
import os, sys
from gramary.native import _core
print(os.environ.get("SPOILED"), hasattr(sys, "spoiled"), os.umask(0o77))
os.environ["SPOILED"] = sys.spoiled = "yes"
"""
    first, second = run_child(script), run_child(script)
    assert first.stdout == second.stdout
    assert first.stdout.startswith("None False")


@pytest.mark.parametrize("tears_down", [False, True])
def test_it_ends_in_good_order(tears_down: bool) -> None:
    """Its threads first, then what it has for its exit; its modules where the test is about it."""
    script = """
import atexit, threading, time
class Last:
    def __del__(self): print("torn down")
last = Last()
atexit.register(print, "exit")
def sleep(): time.sleep(0.05); print("thread")
threading.Thread(target=sleep).start()
print("script", end="...")
"""
    told = run_child(script, tears_down=tears_down).stdout
    assert told == "script...thread\nexit\n" + "torn down\n" * tears_down


def test_several_run_at_once_and_are_talked_to() -> None:
    script = """
import sys
for line in sys.stdin:
    if line == "end\\n":
        break
    print(sys.argv[1], line, end="", flush=True)
"""
    children = [start_child(script, name) for name in "abc"]
    for number, child in enumerate(children):
        child.tell(str(number))
    assert [child.hear() for child in children] == ["a 0\n", "b 1\n", "c 2\n"]
    assert [child.poll() for child in children] == [None] * 3
    children[0].tell("end")
    assert children[0].wait(60) == 0
    os.kill(children[1].pid, signal.SIGTERM)
    assert children[1].wait(60) == -signal.SIGTERM
    for child in children:
        child.close()
    assert children[2].returncode == -signal.SIGKILL


def test_one_that_does_not_end_is_killed() -> None:
    started = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_child("import time; time.sleep(600)", timeout=0.05)
    assert time.monotonic() - started < 60


def test_the_server_ends_with_its_process() -> None:
    script = """
import os
import children
from children import run_child
# What it has imported does not matter.
children.PRELOADED = ()
print(run_child("import os; print(os.getppid())").stdout)
"""
    server = int(run_child(script).stdout)
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
