"""The table whose rows the offload's benchmarks bring to a GPU: on it, on its host, and on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_full_table import full_spec
from benchmarks.table_folder import formula_shards, write_table_folder
from gramary import Batch, Connector, Table
from gramary.settings import Settings

# The table is smaller than the published one.
WARM = "rows pinned, or in the page cache; uniform random tokens, new ones for every chunk or step"


@dataclasses.dataclass(frozen=True)
class OffloadTables:
    """One table's rows, all of them in one tier each."""

    device: Table
    host: Table
    disk: Table

    def parameters(self) -> dict[str, Any]:
        """Returns what a receipt says of the table."""
        codec = self.host.codec
        table_bytes = self.host.spec.num_rows * codec.row_bytes
        return {"codec": codec.name, "table_bytes": table_bytes}


@contextlib.contextmanager
def open_tables(base: int, device: str) -> Iterator[OffloadTables]:
    """Writes the table and opens it for a device in each tier.

    Args:
        base: rows of each of the 16 heads, about.
        device: where rows are wanted.
    """
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        spec = full_spec(base)
        write_table_folder(folder, spec, formula_shards(spec, 128, device))

        def enter(placement: str, **changes: Any) -> Table:
            table = Table.open(
                folder, placement=placement, device=device, settings=settings(**changes)
            )
            return opened.enter_context(table)

        # The GPU reads host rows itself, unless a connector is asked for them.
        host, on_device = (enter(name, host_gather_rows=1 << 15) for name in ("host", "device"))
        yield OffloadTables(on_device, host, enter("disk"))


def settings(**changes: Any) -> Settings:
    """Returns the settings of the runs."""
    return Settings.from_env(memory_limit_bytes=64 << 30, **changes)


@contextlib.contextmanager
def open_connector(name: str, table: Table, max_tokens: int, **changes: Any) -> Iterator[Connector]:
    """Opens a connector, and prints what its service says of a request behind the block.

    Args:
        name: what the requests are for.
        table: where rows come from.
        max_tokens: tokens of the largest request.
        **changes: settings that differ.
    """
    with Connector(table, max_tokens=max_tokens, settings=settings(**changes)) as connector:
        yield connector
        stats = connector.stats()
    requests = stats["host_requests"] + stats["stream_requests"]
    if requests:
        gather_us = stats["gathering_ns"] / requests / 1e3
        rows = stats["rows"] / requests
        print(f"  service, {name}: {requests} requests, {rows:.0f} rows in {gather_us:.1f} us each")


def moved(batch: Batch, device: torch.device | str) -> Batch:
    """Returns a batch with its tensors on a device."""
    tokens, starts = batch.token_ids.to(device), batch.query_start_loc.to(device)
    history = None if batch.history is None else batch.history.to(device)
    return Batch(tokens, starts, history=history)


def embed(table: Table, batch: Batch, **options: Any) -> torch.Tensor:
    """Returns a batch's rows as the table gives them itself."""
    return table.embed(batch.token_ids, batch.query_start_loc, batch.history, **options)


def require_same_bits(ours: torch.Tensor, theirs: torch.Tensor, where: str) -> int:
    """Compares rows bit by bit; returns how many values.

    Raises:
        AssertionError: a value differs; the message ends with `where`.
    """
    if not torch.equal(ours.view(torch.int16), theirs.view(torch.int16)):
        raise AssertionError(f"rows differ: {where}")
    return ours.numel()
