"""What the row service needs to know of a table."""

from __future__ import annotations

from gramary.native.offload import StoreArguments
from gramary.table import Table
from gramary.tiers.disk import DiskTier
from gramary.tiers.host import HostTier


def store_arguments(table: Table) -> StoreArguments:
    """Returns a table's hash constants and the extents that a service in this process can reach.

    The service keeps the tiers' memory and readers, so that it may outlive the table.
    """
    host = disk = (0, 0, 0)
    holds = []
    for tier in table.tiers:
        if isinstance(tier, HostTier):
            host = (tier.rows.data_ptr(), tier.first_row, tier.num_rows)
            holds.append(tier.hold())
        elif isinstance(tier, DiskTier):
            disk = (tier.reader_address, tier.first_row, tier.num_rows)
            holds.append(tier.hold())
    spec = table.spec
    return StoreArguments(
        vocab_size=spec.vocab_size,
        eos_token_id=spec.eos_token_id,
        multipliers=spec.multipliers,
        sizes=spec.sizes,
        offsets=spec.offsets,
        num_rows=spec.num_rows,
        row_bytes=table.codec.row_bytes,
        host=host,
        disk=disk,
        is_sent_on=table.device.type == "cuda",
        holds=tuple(holds),
    )


def disk_files(table: Table) -> tuple[str, ...]:
    """Returns the files that a table's disk rows are read from, as an answer counts them."""
    for tier in table.tiers:
        if isinstance(tier, DiskTier):
            return tuple(file.path for file in tier.layout.files)
    return ()


__all__ = ["disk_files", "store_arguments"]
