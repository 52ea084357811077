"""A progress bar for long work: bytes done, rate and time left; silent off a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


@contextlib.contextmanager
def progress_bar(
    description: str, console: Console | None = None
) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar on standard error while the block runs.

    Args:
        description: what is being done, in a word or two.
        console: where to draw; None is standard error.

    Yields:
        A callback `(done_bytes, total_bytes)`; library code takes any such plain function. When
        the console is no terminal it does nothing.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _ignore
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=None)

        def advance(done_bytes: int, total_bytes: int) -> None:
            if done_bytes < progress.tasks[0].completed:
                # Another pass over the rows: with a rate and a time left of its own.
                progress.reset(task)
            progress.update(task, completed=done_bytes, total=total_bytes)

        yield advance


def _ignore(_done_bytes: int, _total_bytes: int) -> None:
    return
