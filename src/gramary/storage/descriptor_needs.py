"""How many file descriptors a table needs, by where its rows go."""

from __future__ import annotations

from collections.abc import Iterable

from gramary.files.layout import RowLayout
from gramary.native.raw_disk import lane_shape
from gramary.settings import Settings

# The kernel's notes of writes, and the ring that answers small batches.
NUM_OF_READER = 2
# Of the memory that holds a host tier's rows; those that are shared have a folder beside it.
NUM_OF_HOST = 2
# What opens for a moment: /proc, a header, the other end of a pipe.
NUM_TO_SPARE = 8


def num_descriptors(layout: RowLayout, tiers: Iterable[str], settings: Settings) -> int:
    """Returns how many descriptors a table has open at most, while it opens and while it is read.

    Each thread that reads rows from disk at the same time as others may take one more, a ring of
    its own; where it gets none it reads by pread.

    Args:
        layout: where its rows lie in files.
        tiers: names of the tiers that hold rows.
        settings: `disk_reader` and `direct_io` are used.
    """
    names, num_files = set(tiers), len(layout.files)
    needed = NUM_TO_SPARE
    if "disk" in names:
        needed += NUM_OF_READER + num_files
        if settings.disk_reader != "mmap" and settings.direct_io:
            needed += num_files
        if settings.disk_reader in ("auto", "io_uring"):
            needed += lane_shape()[0]
    if "host" in names:
        needed += NUM_OF_HOST
    if names - {"disk"}:
        # Rows that move into memory are read through descriptors of their own.
        needed += num_files
    return needed


__all__ = ["num_descriptors"]
