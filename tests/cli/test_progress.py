"""Progress bars: rate and time left on a terminal, nothing elsewhere."""

import io

import pytest
from rich.console import Console

from gramary.cli.progress import progress_bar


@pytest.mark.behaviour(33)
def test_a_terminal_shows_progress_rate_and_time_left() -> None:
    """Behaviour 33: bytes done, bytes a second and the time left."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with progress_bar("loading rows", console) as advance:
        advance(1 << 20, 4 << 20)
        advance(4 << 20, 4 << 20)
    shown = screen.getvalue()
    assert "loading rows" in shown
    assert "4.0/4.0 MiB" in shown
    assert "/s" in shown
    assert "0:00:00" in shown


@pytest.mark.behaviour(33)
def test_nothing_is_written_off_a_terminal() -> None:
    """Behaviour 33: quiet in logs and pipes."""
    screen = io.StringIO()
    with progress_bar("loading rows", Console(file=screen, force_terminal=False)) as advance:
        advance(1, 2)
    assert screen.getvalue() == ""
