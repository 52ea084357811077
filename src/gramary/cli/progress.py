"""A progress bar for long work: bytes done, rate and time left; silent off a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TextIO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from gramary.cli.output import shown
from gramary.cli.thread_room import count_startable


class Screen:
    """A stream for a bar: the work goes on where the bar can no longer be drawn.

    Args:
        stream: where to draw.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes text, if it can be written."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream, if it can be flushed."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        """Everything else is the stream's own: its encoding, whether it is a terminal."""
        return getattr(self._stream, name)


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
    console = console or Console(file=cast(TextIO, Screen(sys.stderr)))
    if not console.is_terminal:
        yield _ignore
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    # Without a thread that draws it the bar is drawn as the work gets on.
    has_thread = count_startable(1) == 1
    with Progress(*columns, console=console, transient=True, auto_refresh=has_thread) as progress:
        task = progress.add_task(shown(description), total=None)

        def advance(done_bytes: int, total_bytes: int) -> None:
            if done_bytes < progress.tasks[0].completed:
                # Another pass over the rows: with a rate and a time left of its own.
                progress.reset(task)
            progress.update(task, completed=done_bytes, total=total_bytes, refresh=not has_thread)

        yield advance


def _ignore(_done_bytes: int, _total_bytes: int) -> None:
    return


__all__ = ["progress_bar"]
