"""An embedding module whose rows are a gramary table's: no parameter, no buffer with rows."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn

from gramary.errors import ClosedError, UnsupportedError
from gramary.integrations.model_tables import ModelTables
from gramary.table import Table


def refuse_pickling() -> NoReturn:
    """Raises UnsupportedError with the remedy: a pickled model would lack its rows."""
    raise UnsupportedError(
        "a model with a gramary table cannot be pickled: its rows lie outside of it. Pass the "
        "model's folder on, and call gramary.integrations.transformers.load(path) there; "
        "state_dict() holds all other weights"
    )


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
        self._shared: ModelTables | None = None
        self._table_index = 0
        # Holds nothing but the dtype that the model has, and follows model.to(dtype).
        self.register_buffer("_dtype_follower", torch.empty(0), persistent=False)

    @property
    def table(self) -> Table:
        """The table that rows come from; raises ClosedError before `attach`."""
        return self.require_shared().tables[self._table_index]

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

    def attach(self, shared: ModelTables, table_index: int) -> None:
        """Gives the module its table: that of the PLE layer with this dense index."""
        self._shared, self._table_index = shared, table_index

    def require_shared(self) -> ModelTables:
        """Returns all tables of the model; raises ClosedError before `attach`."""
        if self._shared is None:
            raise ClosedError(
                "this model has no n-gram table: build it with gramary.integrations."
                "transformers.load(path)"
            )
        return self._shared

    def close(self) -> None:
        """Closes the model's tables, for all modules that share them."""
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
            RowFetchError: the same, for rows that were requested early.
        """
        table = self.table
        row_ids = row_ids.to(table.device)
        # A compiler is shown the lookup alone.
        if not torch.compiler.is_compiling():
            rows = self.require_shared().take(self._table_index, row_ids, self._dtype)
            if rows is not None:
                return rows
        return table.lookup(row_ids, dtype=self._dtype)

    def extra_repr(self) -> str:
        """Returns the sizes, as `print(model)` shows them."""
        return f"{self.num_embeddings}, {self.embedding_dim}, table=gramary"

    def __deepcopy__(self, memo: dict[int, object]) -> TableEmbedding:
        copied = TableEmbedding(self.num_embeddings, self.embedding_dim)
        copied.register_buffer(
            "_dtype_follower", self.get_buffer("_dtype_follower").clone(), persistent=False
        )
        copied.train(self.training)
        copied._shared, copied._table_index = self._shared, self._table_index
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_pickling()
