"""Lookups in plain torch: index, decode, concatenate."""

from __future__ import annotations

import torch

from gramary.errors import RowIdError
from gramary.model.codecs import Codec, decode_rows_ref
from gramary.model.hashing import HashSpec
from gramary.ops.reference.hash import ngram_ids_ref


def lookup_ref(
    codec: Codec,
    row_ids: torch.Tensor,
    rows: torch.Tensor,
    *,
    first_row: int = 0,
    num_table_rows: int | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Returns rows by their ids, from an extent that may be a part of the table.

    Args:
        codec: encoding of the rows.
        row_ids: integers, any shape; -1 and ids outside the extent give zero rows.
        rows: uint8 [num_rows, row_bytes], the extent.
        first_row: the table's number of its first row.
        num_table_rows: rows of the whole table; None is up to the extent's end.
        dtype: as for `decode_rows_ref`.

    Returns:
        [*row_ids.shape, row_dim], or uint8 [*row_ids.shape, row_bytes], freshly allocated.

    Raises:
        RowIdError: an id is neither -1 nor a row of the table.
    """
    end_row = first_row + rows.shape[0]
    num_table_rows = end_row if num_table_rows is None else num_table_rows
    if bool(((row_ids < -1) | (row_ids >= num_table_rows)).any()):
        raise RowIdError(f"row_ids: an id is neither -1 nor a row below {num_table_rows}")
    is_here = (row_ids >= first_row) & (row_ids < end_row)
    encoded = torch.zeros(*row_ids.shape, codec.row_bytes, dtype=torch.uint8, device=rows.device)
    encoded[is_here] = rows[row_ids[is_here].long() - first_row]
    return decode_rows_ref(codec, encoded, dtype)


def embed_ref(
    spec: HashSpec,
    codec: Codec,
    token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    history: torch.Tensor | None,
    rows: torch.Tensor,
    *,
    first_row: int = 0,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Returns the concatenated rows of every token, from an extent that may be a part.

    Args:
        spec: geometry of the table.
        codec: encoding of its rows.
        token_ids: as for `ngram_ids_ref`, and so are query_start_loc and history.
        query_start_loc: see token_ids.
        history: see token_ids.
        rows: uint8 [num_rows, row_bytes], the extent.
        first_row: the table's number of its first row.
        dtype: as for `decode_rows_ref`.

    Returns:
        [T, num_heads*row_dim], or uint8 [T, num_heads*row_bytes]; zero for padding.

    Raises:
        TokenError, ArgumentError: as `ngram_ids_ref`.
    """
    row_ids = ngram_ids_ref(spec, token_ids, query_start_loc, history)
    found = lookup_ref(
        codec, row_ids, rows, first_row=first_row, num_table_rows=spec.num_rows, dtype=dtype
    )
    return found.flatten(1)


__all__ = ["embed_ref", "lookup_ref"]
