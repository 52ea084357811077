"""An embedding module whose rows are a gramary table's: no parameter, no buffer with rows."""

from __future__ import annotations

import weakref
from typing import NoReturn

import torch
from torch import nn

from gramary.errors import ClosedError, UnsupportedError
from gramary.table import Table


def refuse_pickling() -> NoReturn:
    """Raises UnsupportedError with the remedy: a pickled model would lack its rows."""
    raise UnsupportedError(
        "a model with a gramary table cannot be pickled: its rows lie outside of it. Pass the "
        "model's folder on, and call gramary.integrations.transformers.load(path) there; "
        "state_dict() holds all other weights"
    )


class SharedTable:
    """A table with several users, closed with the last of them.

    Modules hold this, never the table: a copied module shares the rows, and when the last one is
    collected the table is closed as if by `close()`.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._finalizer = weakref.finalize(self, table.close)

    def close(self) -> None:
        """Closes the table for every user; more calls do nothing."""
        self._finalizer()


class TableEmbedding(nn.Module):
    """Stands where an `nn.Embedding` of n-gram rows was, without its storage.

    Made empty, while a model is built; `attach` gives it its table. Rows come in the dtype that
    the model has at the time of the call (`model.half()` changes it), on the table's device: the
    table's own place is decided when it is opened and `model.to(device)` does not move it.
    Neither `parameters()` nor `state_dict()` know of it. A deep copy shares the table.

    Args:
        num_rows: rows of the table.
        row_dim: values in a row.
    """

    def __init__(self, num_rows: int, row_dim: int) -> None:
        super().__init__()
        self.num_embeddings = num_rows
        self.embedding_dim = row_dim
        self._shared: SharedTable | None = None
        # Holds nothing but the dtype that the model has, and follows model.to(dtype).
        self.register_buffer("_dtype_follower", torch.empty(0), persistent=False)

    @property
    def table(self) -> Table:
        """The table that rows come from; raises ClosedError before `attach`."""
        if self._shared is None:
            raise ClosedError(
                "this model has no n-gram table: build it with gramary.integrations."
                "transformers.load(path)"
            )
        return self._shared.table

    @property
    def weight(self) -> torch.Tensor:
        """A tensor [num_rows, row_dim] on the meta device: the shape and dtype, no storage.

        Code that asks an embedding for its weight's device learns that it holds none, and leaves
        the ids where they are.
        """
        shape = (self.num_embeddings, self.embedding_dim)
        return torch.empty(shape, dtype=self._dtype, device="meta")

    @property
    def _dtype(self) -> torch.dtype:
        return self.get_buffer("_dtype_follower").dtype

    def attach(self, shared: SharedTable) -> None:
        """Gives the module its table."""
        self._shared = shared

    def close(self) -> None:
        """Closes the table, for all modules that share it."""
        if self._shared is not None:
            self._shared.close()

    def forward(self, row_ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of `row_ids`.

        Args:
            row_ids: int64 [..., heads] on any device.

        Returns:
            [..., heads, row_dim] in the model's dtype, on the table's device; the caller's own.

        Raises:
            ClosedError: the table was closed, or there never was one.
            RowIdError: an id lies outside the table.
            RowReadError: reading rows from a file failed.
        """
        table = self.table
        return table.lookup(row_ids.to(table.device), dtype=self._dtype)

    def extra_repr(self) -> str:
        """Returns the sizes, as `print(model)` shows them."""
        return f"{self.num_embeddings}, {self.embedding_dim}, table=gramary"

    def __deepcopy__(self, memo: dict[int, object]) -> TableEmbedding:
        copied = TableEmbedding(self.num_embeddings, self.embedding_dim)
        copied.register_buffer(
            "_dtype_follower", self.get_buffer("_dtype_follower").clone(), persistent=False
        )
        copied.train(self.training)
        copied._shared = self._shared
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_pickling()
