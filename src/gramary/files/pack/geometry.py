"""Sizes of a pack, from its rows alone; pure. docs/format.md is the specification."""

from __future__ import annotations

import dataclasses

from gramary.errors import ArgumentError
from gramary.native.blocks import CHECKSUM_BYTES

MIN_BLOCK_BYTES = 4096
MAX_HEADER_BYTES = 1 << 20
FIXED_HEADER_BYTES = 48
# The widest codec at the widest row that a hash specification allows.
MAX_ROW_BYTES = 1 << 22
# The longest header there can be: one block of such rows.
MAX_HEADER_READ = 1 << 23


@dataclasses.dataclass(frozen=True)
class PackGeometry:
    """Where everything lies in a pack of `num_rows` rows of `row_bytes`.

    Attributes:
        num_rows: rows of the table, at least 1.
        row_bytes: bytes of one encoded row.
        metadata_bytes: length of the header's metadata.

    Raises:
        ArgumentError: a number is out of its range.
    """

    num_rows: int
    row_bytes: int
    metadata_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_rows < 1 << 48:
            raise ArgumentError(f"num_rows: expected 1 to 2^48 - 1, got {self.num_rows}")
        if not 1 <= self.row_bytes <= MAX_ROW_BYTES:
            raise ArgumentError(f"row_bytes: expected 1 to {MAX_ROW_BYTES}, got {self.row_bytes}")
        room = MAX_HEADER_BYTES - FIXED_HEADER_BYTES - CHECKSUM_BYTES
        if not 2 <= self.metadata_bytes <= room:
            raise ArgumentError(f"metadata_bytes: expected 2 to {room}, got {self.metadata_bytes}")

    @property
    def block_bytes(self) -> int:
        """Bytes of a block: the least power of two from 4096 on that holds a row."""
        needed = self.row_bytes + CHECKSUM_BYTES
        return max(MIN_BLOCK_BYTES, 1 << (needed - 1).bit_length())

    @property
    def rows_per_block(self) -> int:
        """Rows in every block but the last."""
        return (self.block_bytes - CHECKSUM_BYTES) // self.row_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks that hold rows."""
        return -(-self.num_rows // self.rows_per_block)

    @property
    def header_bytes(self) -> int:
        """Bytes before the first block with rows."""
        needed = FIXED_HEADER_BYTES + self.metadata_bytes + CHECKSUM_BYTES
        return -(-needed // self.block_bytes) * self.block_bytes

    @property
    def first_block(self) -> int:
        """Number of the first block with rows."""
        return self.header_bytes // self.block_bytes

    def offset_of(self, block: int) -> int:
        """Returns the byte at which a block starts, counted from 0 among those with rows."""
        return self.header_bytes + block * self.block_bytes

    @property
    def file_bytes(self) -> int:
        """Exact size of the file."""
        return self.header_bytes + self.num_blocks * self.block_bytes
