"""A table behind a handle: operations that compilers and tracers do not look into.

`torch.compile` must never see a table: traced, its gigabytes would become an argument of the
graph. These operations take a number instead, and what a table answers is looked up when they
run. `Table.embed` and `Table.lookup` go through them while anybody looks at operations: a
compiler, a dispatch mode, a tensor that answers operations itself.
"""

import itertools
import weakref
from typing import Protocol

import torch

from gramary.errors import ClosedError


class RowSource(Protocol):
    """What stands behind a handle: a table, or a stand-in for one."""

    def embed(
        self,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        history: torch.Tensor | None,
        *,
        out: torch.Tensor,
    ) -> object:
        """Writes the rows of a batch's tokens into `out` [T, width]."""

    def lookup(self, row_ids: torch.Tensor, *, out: torch.Tensor) -> object:
        """Writes the rows `row_ids` into `out` [*row_ids.shape, width]."""


_sources: weakref.WeakValueDictionary[int, RowSource] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def register(source: RowSource) -> int:
    """Returns a fresh handle to `source`, which is not kept alive by it."""
    handle = next(_numbers)
    _sources[handle] = source
    return handle


def _source(handle: int) -> RowSource:
    source = _sources.get(handle)
    if source is None:
        raise ClosedError("the table of this compiled graph is gone: compile for an open one")
    return source


@torch.library.custom_op("gramary::embed", mutates_args=())
def embed(
    handle: int,
    token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    history: torch.Tensor | None,
    width: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Returns the rows of a batch's tokens, [T, width] of `dtype`, from the table of `handle`.

    Args:
        handle: of `register`.
        token_ids, query_start_loc, history: as for `Table.embed`.
        width: columns of the result.
        dtype: of the result.

    Raises:
        ClosedError: there is no such table any more.
    """
    out = token_ids.new_empty((token_ids.shape[0], width), dtype=dtype)
    _source(handle).embed(token_ids, query_start_loc, history, out=out)
    return out


@embed.register_fake
def _(
    handle: int,
    token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    history: torch.Tensor | None,
    width: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    del handle, query_start_loc, history
    return token_ids.new_empty((token_ids.shape[0], width), dtype=dtype)


@torch.library.custom_op("gramary::embed_out", mutates_args=("out",))
def embed_out(
    handle: int,
    token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    history: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Writes the rows of a batch's tokens into `out`; see `embed`."""
    _source(handle).embed(token_ids, query_start_loc, history, out=out)


@torch.library.custom_op("gramary::lookup", mutates_args=())
def lookup(handle: int, row_ids: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns rows, [*row_ids.shape, width] of `dtype`, from the table of `handle`.

    Raises:
        ClosedError: there is no such table any more.
    """
    out = row_ids.new_empty((*row_ids.shape, width), dtype=dtype)
    _source(handle).lookup(row_ids, out=out)
    return out


@lookup.register_fake
def _(handle: int, row_ids: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    del handle
    return row_ids.new_empty((*row_ids.shape, width), dtype=dtype)


@torch.library.custom_op("gramary::lookup_out", mutates_args=("out",))
def lookup_out(handle: int, row_ids: torch.Tensor, out: torch.Tensor) -> None:
    """Writes the rows `row_ids` into `out`; see `lookup`."""
    _source(handle).lookup(row_ids, out=out)
