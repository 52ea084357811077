"""The memory that an engine and its row service share: its sizes, and the core's layout of them."""

from __future__ import annotations

import dataclasses

from gramary.arguments import require_integer
from gramary.errors import ArgumentError, CapacityError
from gramary.native.ring import InputPlaces, RegionLayout, RingFields, SlotPlaces

VERSION = RingFields.VERSION
LINE = RingFields.LINE


@dataclasses.dataclass(frozen=True)
class RingShape:
    """Sizes of a region.

    Attributes:
        max_tokens: most tokens of a batch.
        max_requests: most requests of a host-lane batch.
        history_length: the widest table's ngram_size - 1.
        num_heads: heads of each table.
        row_bytes: bytes of an encoded row of each table.
        num_host_slots: results of the host lane under way at once.
        num_stream_slots: streams of the stream lane.
        num_inputs: host-lane batches whose inputs are kept at once.

    Raises:
        ArgumentError: a size is out of its range.
    """

    max_tokens: int
    max_requests: int
    history_length: int
    num_heads: tuple[int, ...]
    row_bytes: tuple[int, ...]
    num_host_slots: int
    num_stream_slots: int
    num_inputs: int

    def __post_init__(self) -> None:
        for name in (
            "max_tokens", "max_requests", "history_length", "num_host_slots", "num_inputs"
        ):  # fmt: skip
            require_integer(name, getattr(self, name), 1)
        require_integer("num_stream_slots", self.num_stream_slots, 0)
        if not 1 <= len(self.num_heads) <= RingFields.MAX_TABLES or len(self.num_heads) != len(
            self.row_bytes
        ):
            raise ArgumentError(
                f"tables: expected 1 to {RingFields.MAX_TABLES}, got {len(self.num_heads)}"
            )
        for heads, row_bytes in zip(self.num_heads, self.row_bytes, strict=True):
            require_integer("num_heads", heads, 1)
            require_integer("row_bytes", row_bytes, 1)

    @property
    def num_tables(self) -> int:
        """Tables whose rows one request fetches."""
        return len(self.num_heads)


class Ring(RegionLayout):
    """The places of everything in a region of one shape; equal for equal shapes.

    Attributes:
        shape: the sizes it was laid out for.
        host_slots, stream_slots: places of the slots.
        inputs: places of the host lane's inputs.
        num_bytes: bytes of the whole region.

    Raises:
        CapacityError: no machine has so much memory.
    """

    def __init__(self, shape: RingShape) -> None:
        try:
            super().__init__(**dataclasses.asdict(shape))
        except OverflowError as error:
            raise CapacityError(
                f"expected a region that a machine can address, got {shape}; ask for less"
            ) from error
        self.shape = shape
        self.host_slots: tuple[SlotPlaces, ...] = self.all_host_slots
        self.stream_slots: tuple[SlotPlaces, ...] = self.all_stream_slots
        self.inputs: tuple[InputPlaces, ...] = self.all_inputs

    def host_slot(self, number: int) -> SlotPlaces:
        """Returns the slot of a host-lane request, numbered from 1."""
        return self.host_slots[(number - 1) % len(self.host_slots)]

    def input(self, number: int) -> InputPlaces:
        """Returns the inputs of a host-lane request, numbered from 1."""
        return self.inputs[(number - 1) % len(self.inputs)]


__all__ = ["LINE", "VERSION", "Ring", "RingShape"]
