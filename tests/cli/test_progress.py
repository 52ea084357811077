"""Progress bars: rate and time left on a terminal, nothing elsewhere."""

import io
import time

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
def test_a_second_pass_has_a_rate_and_a_time_left_of_its_own() -> None:
    """Behaviour 33: re-coding reads the table twice; the end of the first pass is not the end."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with progress_bar("packing", console) as advance:
        for done in (1, 2, 4):
            advance(done << 20, 4 << 20)
        for done in (1, 2):
            advance(done << 20, 4 << 20)
            time.sleep(0.15)
    # The screen as it was last drawn.
    shown = screen.getvalue().rpartition("packing")[2]
    assert "2.0/4.0 MiB" in shown
    assert "0:00:00" not in shown, "half of it is left"


@pytest.mark.behaviour(33)
def test_nothing_is_written_off_a_terminal() -> None:
    """Behaviour 33: quiet in logs and pipes."""
    screen = io.StringIO()
    with progress_bar("loading rows", Console(file=screen, force_terminal=False)) as advance:
        advance(1, 2)
    assert screen.getvalue() == ""
