"""A table's reader from the moment on at which its rows can be read."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gramary.errors import LoadError
from gramary.reading import late


def make_late(monkeypatch: pytest.MonkeyPatch, made: list[Any]) -> late.LateReader:
    """Returns a reader of a store that is not loaded; readers that it makes are noted."""

    def make_reader(*_: object) -> Any:
        events: list[str] = []
        reader = SimpleNamespace(
            events=events,
            check=lambda: events.append("check"),
            close=lambda: events.append("close"),
        )
        made.append(reader)
        return reader

    monkeypatch.setattr(late, "make_reader", make_reader)
    store: Any = SimpleNamespace(is_readable=False, request=None, residency=None)
    return late.LateReader(store)


def test_nothing_is_made_before_rows_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    reader = make_late(monkeypatch, made)
    with pytest.raises(LoadError, match="load every shard"):
        reader.get()
    reader.check()
    reader.close()
    assert made == []


def test_threads_that_come_together_get_one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    reader = make_late(monkeypatch, made)
    reader._store.is_readable = True
    start, found = threading.Barrier(8), []

    def come() -> None:
        start.wait(10)
        found.append(reader.get())

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(made) == 1
    assert found == made * 8
    reader.check()
    reader.close()
    assert made[0].events == ["check", "close"]
