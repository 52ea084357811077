"""Tasks on threads, and on their caller's where none can be had."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest
from children import run_child

from gramary.files.task_threads import TaskThreads

WITHOUT = """
import threading
from thread_limit import start_no_more_than
from gramary.files.task_threads import TaskThreads

start_no_more_than({num_threads})
with TaskThreads(3, "test") as threads:
    answers = [threads.submit(lambda n: (n, threading.current_thread().name), n) for n in range(50)]
    numbers, names = zip(*(answer.result(10) for answer in answers))
assert numbers == tuple(range(50)), numbers
of_callers = names.count("MainThread")
assert of_callers == 50 if {num_threads} == 0 else of_callers < 50, of_callers
failed = None
with TaskThreads(1, "test") as threads:
    failed = threads.submit(divmod, 1, 0)
assert isinstance(failed.exception(10), ZeroDivisionError)
"""


def test_tasks_run_beside_each_other_and_end_before_close_returns() -> None:
    meeting = threading.Barrier(2)
    with TaskThreads(2, "test") as threads:
        answers = [threads.submit(meeting.wait, 10) for _ in range(2)]
        late = threads.submit(threading.current_thread)
    assert {answer.result() for answer in answers} == {0, 1}
    assert late.result().name.startswith("test")
    threads.close()


def test_an_error_of_a_task_is_its_answers() -> None:
    with TaskThreads(1, "test") as threads:
        answers = [threads.submit(divmod, 1, n) for n in (0, 1)]
        wait(answers)
    with pytest.raises(ZeroDivisionError):
        answers[0].result()
    assert answers[1].result() == (1, 0)


@pytest.mark.parametrize(
    "num_threads", [0, *(pytest.param(n, marks=pytest.mark.needs("superuser")) for n in (1, 2))]
)
def test_kind_19_tasks_are_done_where_no_thread_can_be_had(num_threads: int) -> None:
    """Each once, whether a thread came to it or its caller did."""
    done = run_child(WITHOUT.format(num_threads=num_threads))
    assert done.returncode == 0, done.stderr
