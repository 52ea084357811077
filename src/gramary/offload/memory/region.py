"""The shared memory of one connector, as its engine sees it."""

from __future__ import annotations

import torch

from gramary.flat_batch import FlatBatch
from gramary.native.hash import NgramHasher
from gramary.native.memory import HostMapping
from gramary.native.ring import EngineView, Phase, RingFields, SlotPlaces, StatePlaces
from gramary.native.rows import OUTPUTS, RowCodec
from gramary.offload.memory.ring import Ring, RingShape
from gramary.tiers.registration import HostRegistry, Registration


class Region(EngineView):
    """Memory of one shape, zeroed, with what the protocol does in it as the core's own calls.

    Args:
        shape: the sizes to lay it out for.
        registry: CUDA calls to register the memory with; None leaves it plain memory.

    Attributes:
        ring: where everything lies.
        num_tables: tables whose rows one request fetches.
        address: address of the first byte in this process.
        device_address: the same as GPUs see it; `address` where it is not registered.
        descriptor: file descriptor of the memory, owned by the region.

    Raises:
        UnsupportedError: CUDA does not register the memory.
    """

    def __init__(self, shape: RingShape, registry: HostRegistry | None = None) -> None:
        self.ring = Ring(shape)
        self.num_tables = shape.num_tables
        self._mapping = HostMapping(self.ring.num_bytes)
        self._registration: Registration | None = None
        self.device_address = self._mapping.address
        if registry is not None:
            self._register(registry)
        self.descriptor = self._mapping.descriptor
        self._bytes = self._mapping.tensor()
        super().__init__(self._mapping.address, self.ring)
        self.ring.write_header(self.address)

    @property
    def num_bytes(self) -> int:
        """Bytes of the region."""
        return self.ring.num_bytes

    def ids(self, slot: SlotPlaces, table_index: int, num_tokens: int) -> torch.Tensor:
        """Returns a slot's row ids of one table: int64 [num_tokens, heads], in place."""
        heads = self.ring.shape.num_heads[table_index]
        return self._view(slot.ids[table_index], torch.int64, num_tokens, heads)

    def rows(self, slot: SlotPlaces, table_index: int, num_tokens: int) -> torch.Tensor:
        """Returns a slot's rows of one table: uint8 [num_tokens * heads, row_bytes], in place."""
        shape = self.ring.shape
        num_rows = num_tokens * shape.num_heads[table_index]
        return self._view(
            slot.rows[table_index], torch.uint8, num_rows, shape.row_bytes[table_index]
        )

    def write_inputs(
        self,
        number: int,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        history: torch.Tensor | None,
        vocab_size: int,
    ) -> tuple[str, int] | None:
        """Copies a host-lane request's inputs and marks every table as requested.

        Args:
            number: the request's number.
            token_ids: int32 or int64 [T], contiguous.
            query_start_loc: int32 [R+1], contiguous.
            history: int32 or int64 [R, history_length], contiguous; None is all EOS.
            vocab_size: one past the largest token allowed.

        Returns:
            None; or, where a token is wrong and nothing is requested, the name of its argument and
            its index there.
        """
        batch = FlatBatch(token_ids, query_start_loc, history)
        return self.write_checked(number, vocab_size, *batch.addresses())

    def write_ids(
        self,
        slot: SlotPlaces,
        table_index: int,
        hasher: NgramHasher,
        batch: FlatBatch,
    ) -> int:
        """Hashes a batch's row ids of one table into a slot.

        Returns:
            0, or the code of the first wrong number (`native.hash.fault_of`).
        """
        return hasher.core.ngram_ids(*batch.addresses(), self.ids_address(slot, table_index))

    def copy_rows(
        self,
        slot: SlotPlaces,
        table_index: int,
        num_tokens: int,
        codec: RowCodec,
        out: torch.Tensor,
    ) -> None:
        """Decodes a slot's rows of one table.

        Args:
            slot: where they lie.
            table_index: which table's.
            num_tokens: tokens of the request.
            codec: the table's.
            out: [num_tokens, heads * width] in an output dtype, contiguous.
        """
        num_rows = num_tokens * self.ring.shape.num_heads[table_index]
        address = self.rows_address(slot, table_index)
        codec.decode(address, num_rows, OUTPUTS[out.dtype], 0, out.data_ptr())

    def is_requested(self, places: StatePlaces, number: int, table_index: int) -> bool:
        """Returns whether a table of a request is neither answered nor given up."""
        return self.is_in(places, number, table_index, Phase.REQUESTED)

    def is_abandoned(self, places: StatePlaces, number: int, table_index: int) -> bool:
        """Returns whether a table of a request was given up."""
        return self.is_in(places, number, table_index, Phase.ABANDONED)

    def progress_address(self, slot: SlotPlaces, table_index: int) -> int:
        """Returns the address of a table's progress in this process."""
        return self.address + slot.answers[table_index] + RingFields.ANSWER_PROGRESS

    def ready_address(self, slot: SlotPlaces, table_index: int) -> int:
        """Returns the address of a table's flag in this process."""
        return self.address + slot.answers[table_index] + RingFields.READY

    def hold(self) -> object:
        """Returns what keeps the memory, beyond `close` too."""
        return self._mapping.hold()

    def close(self) -> None:
        """Gives the memory back, once nobody holds it; no GPU may use it any more."""
        if self._registration is not None:
            self._registration.close()
            self._registration = None
        self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._mapping.close()

    def _register(self, registry: HostRegistry) -> None:
        mapping = self._mapping
        try:
            mapping.populate()
            # Its rows need not end with a piece: pieces lie one behind the other for GPUs too.
            self._registration = Registration(
                mapping.address,
                mapping.mapped_bytes,
                mapping.page_bytes,
                mapping.page_bytes,
                registry,
            )
        except BaseException:
            mapping.close()
            raise
        self.device_address = self._registration.device_address

    def _view(self, place: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        count = 1
        for size in shape:
            count *= size
        return self._bytes[place : place + count * dtype.itemsize].view(dtype).view(shape)


__all__ = ["Region"]
