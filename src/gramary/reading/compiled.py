"""Lookups of a table inside a compiled graph, which sees a number where the table is."""

from __future__ import annotations

from typing import Protocol

import torch

from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.ops import opaque
from gramary.reading.arguments import fitting_buffer


class HandledTable(Protocol):
    """What a compiled lookup needs to know of a table."""

    spec: HashSpec
    codec: Codec
    device: torch.device
    handle: int


def lookup(
    table: HandledTable, row_ids: torch.Tensor, out: torch.Tensor | None, dtype: torch.dtype | None
) -> torch.Tensor:
    """Returns `Table.lookup` of the same arguments, by an opaque operation."""
    if out is None and row_ids.device == table.device:
        dtype, width = table.codec.output_form(dtype)
        rows: torch.Tensor = opaque.lookup(table.handle, row_ids, width, dtype)
        return rows
    result = fitting_buffer(table.codec, row_ids.shape, 1, table.device, out, dtype)
    opaque.lookup_out(table.handle, row_ids, result)
    return result


def embed(
    table: HandledTable,
    batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    out: torch.Tensor | None,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """Returns `Table.embed` of (token_ids, query_start_loc, history), by an opaque operation."""
    token_ids, num_heads = batch[0], table.spec.num_heads
    if out is None and token_ids.device == table.device:
        dtype, width = table.codec.output_form(dtype)
        rows: torch.Tensor = opaque.embed(table.handle, *batch, num_heads * width, dtype)
        return rows
    result = fitting_buffer(table.codec, token_ids.shape, num_heads, table.device, out, dtype)
    opaque.embed_out(table.handle, *batch, result)
    return result
