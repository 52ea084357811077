"""A gate that many threads pass and one closes."""

import threading

import pytest

from gramary.errors import ClosedError
from gramary.lifetime import Lifetime


def test_close_waits_for_users() -> None:
    life = Lifetime("table")
    inside, leave, events = threading.Event(), threading.Event(), []

    def use() -> None:
        with life.using():
            inside.set()
            assert leave.wait(10)
            events.append("left")

    def close() -> None:
        first.append(life.close())
        events.append("closed")

    first: list[bool] = []
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
    assert events == ["left", "closed"]
    assert first == [True]
    assert life.close() is False


def test_users_may_nest_and_errors_leave_the_gate() -> None:
    life = Lifetime("table")
    with pytest.raises(ValueError, match="inner"), life.using(), life.using():
        raise ValueError("inner")
    assert life.close() is True
