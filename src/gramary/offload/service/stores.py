"""What the row service needs to know of a table."""

from __future__ import annotations

from gramary.native.offload import StoreArguments
from gramary.native.rows import NO_ROWS
from gramary.ops._cpu.hash import hasher
from gramary.table import Table


def store_arguments(table: Table) -> StoreArguments:
    """Returns a table's hash constants and the extents that a service in this process can reach.

    The service keeps the tiers' memory and readers, so that it may outlive the table.
    """
    host, disk = table.residency.host, table.residency.disk
    holds = [tier.hold() for tier in (host, disk) if tier is not None]
    if host is not None:
        holds.append(host.counts.read.hold())
    return StoreArguments(
        hasher=hasher(table.spec).core,
        num_rows=table.spec.num_rows,
        row_bytes=table.codec.row_bytes,
        host=host.extent if host else NO_ROWS,
        disk=disk.extent if disk else NO_ROWS,
        is_sent_on=table.device.type == "cuda",
        holds=holds,
    )


def disk_files(table: Table) -> tuple[str, ...]:
    """Returns the files that a table's disk rows are read from, as an answer counts them."""
    disk = table.residency.disk
    return tuple(file.path for file in disk.layout.files) if disk else ()


__all__ = ["disk_files", "store_arguments"]
