"""CPU backend of lookups: rows by id or by tokens from one extent in memory, decoded."""

from __future__ import annotations

import torch

from gramary.errors import RowIdError
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.native import rows as native_rows
from gramary.native.rows import RowExtent
from gramary.ops._cpu.hash import hasher, raise_fault
from gramary.ops.flat_batch import as_in_memory


def lookup(
    codec: Codec, row_ids: torch.Tensor, extent: RowExtent, num_table_rows: int, out: torch.Tensor
) -> None:
    """Writes rows by their ids.

    Args:
        codec: encoding of the rows.
        row_ids: int64 [n], contiguous; -1 and ids outside the extent give zero rows and read
            nothing.
        extent: the rows in memory.
        num_table_rows: rows of the whole table.
        out: [n, row_dim], or uint8 [n, row_bytes], contiguous.

    Raises:
        RowIdError: an id lies outside the table; the message names the first. `out` is then
            undefined.
    """
    wrong = native_rows.lookup(
        codec.name, codec.row_dim, codec.scale, row_ids, extent, num_table_rows, out
    )
    if wrong is not None:
        raise RowIdError(
            f"row_ids[{wrong}]: expected -1 (no row) or a row from 0 to {num_table_rows - 1}, "
            f"got {int(row_ids[wrong])}"
        )


def embed(
    spec: HashSpec,
    codec: Codec,
    token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    history: torch.Tensor | None,
    extent: RowExtent,
    out: torch.Tensor,
) -> None:
    """Writes the rows of a checked flat batch: hash, gather and decode in one pass.

    Args:
        spec: geometry of the table.
        codec: encoding of its rows.
        token_ids: int32 or int64 [T].
        query_start_loc: int32 [R+1].
        history: int32 or int64 [R, ngram_size-1], or None.
        extent: the rows in memory; other rows are zero and not read.
        out: [T, num_heads*row_dim], or uint8 [T, num_heads*row_bytes], contiguous; zero for
            padding.

    Raises:
        TokenError: a token or a history token lies outside the vocabulary.
        ArgumentError: query_start_loc does not begin with 0, falls or passes T.
    """
    token_ids, query_start_loc = as_in_memory(token_ids), as_in_memory(query_start_loc)
    history = None if history is None else as_in_memory(history)
    fault = native_rows.embed(
        hasher(spec), codec.name, codec.row_dim, codec.scale,
        token_ids, query_start_loc, history, extent, out,
    )  # fmt: skip
    if fault is not None:
        raise_fault(fault, spec, token_ids, query_start_loc, history)


def decode(
    codec: Codec, encoded: torch.Tensor, out: torch.Tensor, positions: torch.Tensor | None = None
) -> None:
    """Writes decoded rows, one after another or each to its place.

    Args:
        codec: encoding of the rows.
        encoded: uint8 [n, row_bytes], contiguous.
        out: [n, row_dim], or uint8 [n, row_bytes], contiguous; [m, ...] with positions.
        positions: int64 [n], contiguous, all different, 0 to m-1: where each row goes.
    """
    native_rows.decode(codec.name, codec.row_dim, codec.scale, encoded, out, positions)


__all__ = ["decode", "embed", "lookup"]
