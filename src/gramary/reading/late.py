"""A table's reader from the moment on at which its rows can be read."""

from __future__ import annotations

import threading

from gramary.errors import LoadError
from gramary.reading.base import TableReader
from gramary.reading.choice import make_reader
from gramary.storage.row_store import RowStore


class LateReader:
    """Makes the reader of a store's rows at its first use, whichever thread that is.

    Args:
        store: the rows, on their way or there.
    """

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._making = threading.Lock()
        self._reader: TableReader | None = None

    def get(self) -> TableReader:
        """Returns the reader.

        Raises:
            LoadError: the rows cannot be read yet.
            DependencyError: as `make_reader`.
        """
        if not self._store.is_readable:
            raise LoadError("the table is not loaded: load every shard, then finish_loading()")
        with self._making:
            if self._reader is None:
                self._reader = make_reader(self._store.request, self._store.residency)
            return self._reader

    def check(self) -> None:
        """Raises the first error that an earlier call on a GPU left behind, once."""
        if self._reader is not None:
            self._reader.check()

    def close(self) -> None:
        """Closes the reader, if it was ever made."""
        if self._reader is not None:
            self._reader.close()


__all__ = ["LateReader"]
