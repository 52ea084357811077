"""Kind 26: loading a table against a model of it; what is refused changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_stage import make_spec

from gramary import Table
from gramary.errors import GramaryError, LoadError
from gramary.model.codecs import Codec

SPEC = make_spec()
CODEC = Codec("bf16", SPEC.row_dim, None)
ROWS = (
    torch.arange(SPEC.num_rows * SPEC.row_dim, dtype=torch.float32)
    .view(SPEC.num_rows, SPEC.row_dim)
    .to(torch.bfloat16)
)
NUM_SHARDS = 3
SHARDS = ROWS.split(-(-SPEC.num_rows // NUM_SHARDS))
WRONG: dict[str, Any] = {
    "dtype": lambda rows: rows.float(),
    "columns": lambda rows: rows[:, :5],
    "too many": lambda rows: torch.cat([rows, rows]),
    "too few": lambda rows: rows[:-1],
    "none": lambda rows: rows[:0],
    "no tensor": lambda _rows: None,
}
CALLS = st.one_of(
    st.tuples(st.just("load"), st.integers(0, NUM_SHARDS - 1)),
    st.tuples(st.just("load_wrongly"), st.integers(-1, NUM_SHARDS), st.sampled_from(list(WRONG))),
    st.tuples(st.just("materialize")),
    st.tuples(st.just("finish_loading")),
    st.tuples(st.just("lookup")),
)


class Run:
    """A table that is loaded, and what it should be."""

    def __init__(self, is_number_known: bool) -> None:
        self.table = Table.empty(SPEC, CODEC, num_shards=NUM_SHARDS if is_number_known else None)
        self.is_number_known = is_number_known
        self.loaded: set[int] = set()
        self.has_storage = self.is_readable = False

    def state(self) -> tuple[Any, ...]:
        store = self.table._store
        return (
            store.placement,
            self.table.tiers,
            store.is_readable,
            store._ledger.missing(),
            store._order._rows_each,
            None if (host := store.residency.host) is None else host.rows.clone(),
        )

    def refused(self, call: Any) -> None:
        before = self.state()
        with pytest.raises(GramaryError):
            call()
        after = self.state()
        assert after[:5] == before[:5]
        assert before[5] is None or torch.equal(after[5], before[5])

    def load(self, index: int) -> None:
        call = lambda: self.table.load_shard(index, SHARDS[index])  # noqa: E731
        is_over = self.is_readable and self.loaded
        is_clear = self.is_number_known or self.loaded or index == 0
        if index in self.loaded or is_over:
            self.refused(call)
        elif is_clear:
            call()
            self.loaded.add(index)
            self.has_storage, self.is_readable = True, False
        else:
            # Alone, it may or may not tell its place; either way it is the right one.
            before = self.state()
            try:
                call()
            except LoadError:
                assert self.state()[:5] == before[:5]
                return
            self.loaded.add(index)
            self.has_storage, self.is_readable = True, False

    def load_wrongly(self, index: int, how: str) -> None:
        shard = SHARDS[index] if 0 <= index < NUM_SHARDS else SHARDS[0]
        if how in ("too many", "too few") and not (self.is_number_known or self.loaded):
            # A shard of another size may be right where nothing is known.
            return
        if how == "none" and index == NUM_SHARDS and self.loaded and not self.is_number_known:
            # Beyond the last row there may be shards without any.
            return
        self.refused(lambda: self.table.load_shard(index, WRONG[how](shard)))

    def materialize(self) -> None:
        if self.has_storage:
            self.refused(self.table.materialize)
        else:
            self.table.materialize()
            self.has_storage = self.is_readable = True

    def finish_loading(self) -> None:
        if self.is_readable or len(self.loaded) == NUM_SHARDS:
            self.table.finish_loading()
            self.is_readable = True
        else:
            self.refused(self.table.finish_loading)

    def lookup(self) -> None:
        ids = torch.arange(SPEC.num_rows)
        if not self.is_readable:
            self.refused(lambda: self.table.lookup(ids))
            return
        expected = ROWS if self.loaded else torch.zeros_like(ROWS)
        assert torch.equal(self.table.lookup(ids), expected)


@settings(max_examples=60)
@given(calls=st.lists(CALLS, max_size=12), is_number_known=st.booleans())
def test_kind_26_a_table_is_its_model_and_refusals_change_nothing(
    calls: list[tuple[Any, ...]], is_number_known: bool
) -> None:
    run = Run(is_number_known)
    try:
        for name, *words in calls:
            getattr(run, name)(*words)
    finally:
        run.table.close()
