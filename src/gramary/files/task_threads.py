"""Threads for tasks that the caller does itself where the machine starts no more threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from gramary.lifetime import Closing

Result = TypeVar("Result")


class TaskThreads(Closing):
    """Runs tasks on up to `num_threads` threads, which start when they are first needed.

    Where a limit on processes or on address space leaves no thread, a task runs on its caller's
    before `submit` returns.

    Args:
        num_threads: most threads.
        name: what their names begin with.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(num_threads, name)

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Returns what becomes of `work(*arguments)`."""
        task = _Task(work, arguments)
        try:
            self._executor.submit(task.run)
        except RuntimeError:
            # The executor may have the task in its queue, and a thread that comes to it.
            task.run()
        return task.future

    def close(self) -> None:
        """Waits for the tasks and ends the threads; more calls do nothing."""
        self._executor.shutdown()


class _Task(Generic[Result]):
    """A call that is made once, by whoever comes to it first."""

    def __init__(self, work: Callable[..., Result], arguments: tuple[Any, ...]) -> None:
        self.future: Future[Result] = Future()
        self._work, self._arguments = work, arguments
        self._turn = threading.Lock()

    def run(self) -> None:
        """Makes the call, unless it was begun."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            result = self._work(*self._arguments)
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


__all__ = ["TaskThreads"]
