"""How things end: a gate that many threads pass and one closes, who is closed first, `with`."""

import gc
import threading

import pytest

from gramary.errors import ClosedError
from gramary.lifetime import Closing, Lifetime


def test_close_waits_for_users() -> None:
    life = Lifetime("table")
    inside, leave, events = threading.Event(), threading.Event(), []

    def use() -> None:
        with life.using():
            inside.set()
            assert leave.wait(10)
            events.append("left")

    def close() -> None:
        life.close(lambda: events.append("ended"))
        events.append("closed")

    user, closer = threading.Thread(target=use), threading.Thread(target=close)
    user.start()
    assert inside.wait(10)
    closer.start()
    while not life.closed:
        pass
    with pytest.raises(ClosedError, match="the table was closed"), life.using():
        pytest.fail("nobody enters while it closes")
    leave.set()
    user.join(10)
    closer.join(10)
    assert events == ["left", "ended", "closed"]
    life.close(lambda: events.append("ended twice"))
    assert events == ["left", "ended", "closed"]


def test_users_may_nest_and_errors_leave_the_gate() -> None:
    life = Lifetime("table")
    with pytest.raises(ValueError, match="inner"), life.using(), life.using():
        raise ValueError("inner")
    life.close(nothing)
    assert life.closed


def nothing() -> None:
    """What there is to end here."""


class Neighbour(Closing):
    """Notes when it is closed, and whether the object was closed for others then."""

    def __init__(self, life: Lifetime, events: list[tuple[str, bool]], name: str) -> None:
        self.life, self.events, self.name = life, events, name

    def close(self) -> None:
        self.events.append((self.name, self.life.closed))


def test_neighbours_are_closed_once_before_close_returns() -> None:
    life, events = Lifetime("table"), []
    neighbours = [Neighbour(life, events, name) for name in "ab"]
    for neighbour in neighbours:
        life.close_first(neighbour)
        life.close_first(neighbour)
    life.close(nothing)
    assert sorted(events) == [("a", True), ("b", True)]
    life.close(nothing)
    assert len(events) == 2
    with pytest.raises(ClosedError, match="the table was closed"):
        life.close_first(neighbours[0])


def test_a_neighbour_is_closed_when_the_last_user_has_left_and_may_ask_the_gate() -> None:
    """It finds the gate closed, and hangs nobody, though a thread of its own stands before it."""
    life, inside, leave = Lifetime("table"), threading.Event(), threading.Event()
    events: list[str] = []

    class Asking(Closing):
        def close(self) -> None:
            asker = threading.Thread(target=self.ask)
            asker.start()
            asker.join(10)
            assert not asker.is_alive()

        def ask(self) -> None:
            with pytest.raises(ClosedError), life.using():
                pytest.fail("nobody enters while it closes")
            events.append("asked")

    def use() -> None:
        with life.using():
            inside.set()
            assert leave.wait(10)
            events.append("left")

    neighbour = Asking()
    life.close_first(neighbour)
    user, closer = (
        threading.Thread(target=use),
        threading.Thread(target=life.close, args=(nothing,)),
    )
    user.start()
    assert inside.wait(10)
    closer.start()
    leave.set()
    for thread in (user, closer):
        thread.join(10)
        assert not thread.is_alive()
    assert events == ["left", "asked"]


def test_a_neighbour_that_is_gone_is_forgotten() -> None:
    life, events = Lifetime("table"), []
    life.close_first(Neighbour(life, events, "gone"))
    gc.collect()
    life.close(nothing)
    assert events == []


def test_a_block_closes_what_it_was_given_also_by_an_error() -> None:
    events: list[tuple[str, bool]] = []
    closing = Neighbour(Lifetime("table"), events, "block")
    with closing as given:
        assert given is closing
        assert not events
    with pytest.raises(ValueError, match="inner"), closing:
        raise ValueError("inner")
    assert len(events) == 2
