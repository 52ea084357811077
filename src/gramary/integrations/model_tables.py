"""The tables of one model and what requests their rows early, closed together."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from gramary.batch import Batch
from gramary.errors import RowFetchError
from gramary.integrations.prompt_chunks import has_token_outside
from gramary.integrations.prompt_rows import PromptRows
from gramary.offload import Connector
from gramary.settings import Settings
from gramary.table import Table

# Chunks whose rows are under way at once: the one that runs, and the next.
NUM_AHEAD = 2

# The prompt that this thread's forwards read, where its rows were requested early.
_reading: ContextVar[PromptRows | None] = ContextVar("reading", default=None)


class ModelTables:
    """The tables of a model, for all modules and copies that share them.

    Modules hold this, never a table: when the last one is collected, the tables are closed as if
    by `close()`. A connector is made when the first prompt is read in chunks.

    Args:
        tables: by dense index of the PLE layer.
        prefill_early_request: False looks every row up when its layer asks for it.
        settings: for the connector; None reads the environment.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        prefill_early_request: bool = True,
        settings: Settings | None = None,
    ) -> None:
        self.tables = tuple(tables)
        self._finalizer = weakref.finalize(self, close_all, self.tables)
        self._is_early = prefill_early_request
        self._settings = settings
        self._turn = threading.Lock()
        # Which prompt is read with requests ahead; one at a time.
        self._reader: object = None
        self._connector: Connector | None = None
        self._max_tokens = 0
        self._prompts: Counter[str] = Counter()
        self._lanes: Counter[str] = Counter()
        self._num_chunks = 0

    def close(self) -> None:
        """Closes the tables, and the connector before them; more calls do nothing but what an
        interrupted one left."""
        close_all(self.tables)
        self._finalizer.detach()

    def stats(self) -> dict[str, Any]:
        """Returns how prompts were read.

        Returns:
            "prompts": how many had their rows requested early, and why others had not; "chunks":
            how many chunks' rows were taken so; "lanes": which lane the chunks' requests took and
            why, as in `Connector.stats()`.

        Raises:
            ClosedError: the tables were closed.
        """
        lanes = self._lanes.copy()
        if self._connector is not None:
            lanes += Counter(self._connector.stats()["lanes"])
        return {
            "prompts": dict(self._prompts),
            "chunks": self._num_chunks,
            "lanes": dict(lanes),
        }

    def why_not_early(self, chunk_size: int | None) -> str | None:
        """Returns why a prompt's rows are not requested early, in a few fixed words, or None."""
        if not self._is_early:
            return "prefill_early_request is off"
        if not chunk_size or chunk_size < 1:
            return "no prefill_chunk_size"
        if len({table.device for table in self.tables}) != 1:
            return "tables on several devices"
        return None

    @contextlib.contextmanager
    def looked_up(self, reason: str) -> Iterator[None]:
        """Counts the prompt of a block, whose rows are looked up when their layer asks for them."""
        self._prompts[reason] += 1
        # The block may run inside a forward of another prompt.
        outer = _reading.set(None)
        try:
            yield
        finally:
            _reading.reset(outer)

    @contextlib.contextmanager
    def requested_early(self, make_chunks: Callable[[], list[Batch]]) -> Iterator[None]:
        """Has the rows of a prompt requested ahead of the forwards that this block runs.

        Args:
            make_chunks: gives the prompt's batches; called where they are needed.

        Raises:
            RowFetchError: on CUDA, some rows could not be had, or were not the forward's.
        """
        # The block is known before it has its turn, so that giving it back can be done at any time.
        reader = object()
        try:
            with self._turn:
                self._reader = self._reader or reader
            if self._reader is not reader:
                with self.looked_up("another prompt is being read"):
                    yield
                return
            chunks = make_chunks()
            reason = self._why_not_these(chunks)
            with self._request(chunks) if reason is None else self.looked_up(reason):
                yield
        finally:
            if self._reader is reader:
                self._reader = None

    def take(
        self, table_index: int, row_ids: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor | None:
        """Returns one table's rows if this thread reads a prompt of this model, requested early.

        Args, Returns and Raises are those of `PromptRows.take`.
        """
        prompt = _reading.get()
        if prompt is None or prompt.tables is not self.tables:
            return None
        return prompt.take(table_index, row_ids, dtype)

    def _why_not_these(self, chunks: list[Batch]) -> str | None:
        """Returns why these chunks' rows are not requested early, in a few fixed words, or None."""
        vocab_size = min(table.spec.vocab_size for table in self.tables)
        # A model whose embeddings were resized takes more tokens than its tables were made for, and
        # hashes them itself.
        if any(has_token_outside(batch, vocab_size) for batch in chunks):
            return "a token outside the table's vocabulary"
        return None

    @contextlib.contextmanager
    def _request(self, chunks: list[Batch]) -> Iterator[None]:
        """Requests the first chunks; the block's forwards take them."""
        connector = self._connector_for(max((batch.num_tokens for batch in chunks), default=1))
        prompt = PromptRows(connector, self.tables, chunks, NUM_AHEAD)
        outer = _reading.set(prompt)
        try:
            prompt.begin()
            self._prompts["early"] += 1
            yield
            prompt.end()
        except RowFetchError:
            # A slot may wait for its answer still: the next prompt begins anew.
            self._drop_connector()
            raise
        except BaseException:
            prompt.abandon()
            raise
        finally:
            _reading.reset(outer)
            self._num_chunks += prompt.num_taken

    def _connector_for(self, num_tokens: int) -> Connector:
        """Returns a connector that takes batches of so many tokens."""
        if num_tokens > self._max_tokens:
            self._drop_connector()
        if self._connector is None:
            self._connector = Connector(
                self.tables, max_tokens=num_tokens, num_slots=NUM_AHEAD, settings=self._settings
            )
            self._max_tokens = num_tokens
        return self._connector

    def _drop_connector(self) -> None:
        """Closes the connector; the next prompt makes a new one."""
        connector, self._connector = self._connector, None
        self._max_tokens = 0
        if connector is not None:
            self._lanes += Counter(connector.stats()["lanes"])
            connector.close()


def close_all(tables: Sequence[Table]) -> None:
    """Closes tables."""
    for table in tables:
        table.close()


__all__ = ["ModelTables", "close_all"]
