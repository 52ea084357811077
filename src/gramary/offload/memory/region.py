"""The shared memory of one connector, as its engine sees it."""

from __future__ import annotations

import torch

from gramary.native import offload as words
from gramary.native.memory import HostMapping
from gramary.offload.memory import ring
from gramary.offload.memory.ring import (
    Failure,
    InputPlaces,
    Phase,
    Ring,
    RingShape,
    ServiceState,
    SlotPlaces,
    progress_of,
    state_of,
)
from gramary.tiers.registration import HostRegistry, Registration


class Region:
    """Memory of one shape, zeroed, with the words of the protocol by name.

    Args:
        shape: the sizes to lay it out for.
        registry: CUDA calls to register the memory with; None leaves it plain memory.

    Attributes:
        ring: where everything lies.
        address: address of the first byte in this process.
        device_address: the same as GPUs see it; `address` where it is not registered.
        descriptor: file descriptor of the memory, owned by the region.

    Raises:
        UnsupportedError: CUDA does not register the memory.
    """

    def __init__(self, shape: RingShape, registry: HostRegistry | None = None) -> None:
        self.ring = Ring(shape)
        self._mapping = HostMapping(self.ring.num_bytes)
        self._registration: Registration | None = None
        self.address = self.device_address = self._mapping.address
        if registry is not None:
            self._register(registry)
        self.descriptor = self._mapping.descriptor
        self._bytes = self._mapping.tensor()
        header = torch.frombuffer(bytearray(self.ring.header()), dtype=torch.uint8)
        self._bytes[: header.numel()] = header

    @property
    def num_bytes(self) -> int:
        """Bytes of the region."""
        return self.ring.num_bytes

    def ids(self, slot: SlotPlaces, layer: int, num_tokens: int) -> torch.Tensor:
        """Returns a slot's row ids of one layer: int64 [num_tokens, heads], in place."""
        heads = self.ring.shape.num_heads[layer]
        return self._view(slot.ids[layer], torch.int64, num_tokens, heads)

    def rows(self, slot: SlotPlaces, layer: int, num_tokens: int) -> torch.Tensor:
        """Returns a slot's rows of one layer: uint8 [num_tokens * heads, row_bytes], in place."""
        shape = self.ring.shape
        num_rows = num_tokens * shape.num_heads[layer]
        return self._view(slot.rows[layer], torch.uint8, num_rows, shape.row_bytes[layer])

    def write_inputs(
        self,
        number: int,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        history: torch.Tensor | None,
    ) -> None:
        """Copies a host-lane request's inputs and marks every layer as requested."""
        places = self.ring.input(number)
        num_tokens, num_requests = token_ids.numel(), query_start_loc.numel() - 1
        self._view(places.tokens, torch.int64, num_tokens).copy_(token_ids)
        self._view(places.starts, torch.int32, num_requests + 1).copy_(query_start_loc)
        if history is not None:
            width = self.ring.shape.history_length
            self._view(places.history, torch.int64, num_requests, width).copy_(history)
        header = self.address + places.header
        words.store_u64(header + ring.INPUT_NUM_TOKENS, num_tokens)
        words.store_u64(header + ring.INPUT_NUM_REQUESTS, num_requests)
        words.store_u64(header + ring.INPUT_HAS_HISTORY, int(history is not None))
        words.store_u64(header + ring.INPUT_NUMBER, number)
        self.mark_requested(places, number)
        words.store_u64(header + ring.INPUT_CLAIM, state_of(number, Phase.REQUESTED))

    def take_back(self, number: int, timeout_s: float) -> bool:
        """Takes the inputs of a host-lane request back whose slot was released.

        Waits while the service copies them: no longer than that takes. What it has not begun with
        it passes over.

        Returns:
            Whether the service has let them go; False after the time-out.
        """
        address = self.address + self.ring.input(number).header + ring.INPUT_CLAIM
        requested, abandoned, claimed = (
            state_of(number, phase) for phase in (Phase.REQUESTED, Phase.ABANDONED, Phase.CLAIMED)
        )
        if words.swap_u64(address, requested, abandoned):
            return True
        return words.load_u64(address) != claimed or words.wait_while(address, claimed, timeout_s)

    def fill_slot(self, slot: SlotPlaces, number: int, ids: list[torch.Tensor]) -> None:
        """Copies a stream-lane request's row ids, a tensor [T, heads] a layer; not its number."""
        num_tokens = ids[0].shape[0]
        for layer, layer_ids in enumerate(ids):
            self.ids(slot, layer, num_tokens).copy_(layer_ids)
        header = self.address + slot.header
        words.store_u64(header + ring.SLOT_NUM_TOKENS, num_tokens)
        self.mark_requested(slot, number)

    def ring_slot(self, slot: SlotPlaces, number: int) -> None:
        """Writes a complete stream-lane request's number, which is the doorbell."""
        words.store_u64(self.address + slot.header + ring.SLOT_NUMBER, number)

    def announce(self, number: int) -> None:
        """Tells the service of the newest host-lane request."""
        words.store_u64(self.address + ring.HOST_NUMBER, number)

    def announced(self) -> int:
        """Returns the newest host-lane request that the service was told of."""
        return words.load_u64(self.address + ring.HOST_NUMBER)

    def mark_requested(self, places: SlotPlaces | InputPlaces, number: int) -> None:
        """Sets every layer's state word to requested."""
        for layer in range(self.ring.shape.num_layers):
            state = state_of(number, Phase.REQUESTED)
            words.store_u64(self._state_address(places, layer), state)

    def abandon(self, places: SlotPlaces | InputPlaces, number: int, layer: int) -> bool:
        """Gives a layer of a request up; returns False where its answer was published first."""
        requested = state_of(number, Phase.REQUESTED)
        abandoned = state_of(number, Phase.ABANDONED)
        return words.swap_u64(self._state_address(places, layer), requested, abandoned)

    def is_requested(self, places: SlotPlaces | InputPlaces, number: int, layer: int) -> bool:
        """Returns whether a layer of a request is neither answered nor given up."""
        state = words.load_u64(self._state_address(places, layer))
        return state == state_of(number, Phase.REQUESTED)

    def is_abandoned(self, places: SlotPlaces | InputPlaces, number: int, layer: int) -> bool:
        """Returns whether a layer of a request was given up."""
        state = words.load_u64(self._state_address(places, layer))
        return state == state_of(number, Phase.ABANDONED)

    def is_settled(self, places: SlotPlaces | InputPlaces, number: int, layer: int) -> bool:
        """Returns whether a layer of a request was answered or given up."""
        state = words.load_u64(self._state_address(places, layer))
        ends = (Phase.PUBLISHED, Phase.FAILED, Phase.ABANDONED)
        return state in {state_of(number, end) for end in ends}

    def wait_ready(self, slot: SlotPlaces, layer: int, timeout_s: float) -> bool:
        """Waits for a layer's flag; returns False after the time-out."""
        return words.wait_word(self.ready_address(slot, layer), timeout_s)

    def raise_ready(self, slot: SlotPlaces, layer: int, number: int) -> None:
        """Ends a layer's progress and raises its flag; for whoever gave the request up."""
        words.raise_u32(self.progress_address(slot, layer), progress_of(number, ring.PARTS))
        words.store_u32(self.ready_address(slot, layer), 1)

    def clear_ready(self, slot: SlotPlaces, layer: int) -> None:
        """Lowers a layer's flag; for the consumer that waited for it."""
        words.store_u32(self.ready_address(slot, layer), 0)

    def answer(self, slot: SlotPlaces, layer: int) -> tuple[int, Failure, int, int, int]:
        """Returns a layer's answer: number, failure, errno, file index and offset."""
        base = self.address + slot.answers[layer]
        error = words.load_u32(base + ring.ANSWER_ERROR)
        file = words.load_u32(base + ring.ANSWER_FILE)
        return (
            words.load_u64(base + ring.ANSWER_NUMBER),
            Failure(words.load_u32(base + ring.ANSWER_FAILURE)),
            error,
            -1 if file == 0xFFFFFFFF else file,
            words.load_u64(base + ring.ANSWER_OFFSET),
        )

    def released(self, slot: SlotPlaces) -> int:
        """Returns the newest request of a slot whose rows were taken."""
        return words.load_u64(self.address + slot.header + ring.RELEASED)

    def release(self, slot: SlotPlaces, number: int) -> None:
        """Says that a request's rows were taken: the slot may be overwritten."""
        words.store_u64(self.address + slot.header + ring.RELEASED, number)

    def done(self, slot: SlotPlaces) -> int:
        """Returns the newest request of a slot that the service is through with."""
        return words.load_u64(self.address + slot.header + ring.DONE)

    def slot_number(self, slot: SlotPlaces) -> int:
        """Returns the newest request raised in a stream-lane slot."""
        return words.load_u64(self.address + slot.header + ring.SLOT_NUMBER)

    def ask_to_stop(self) -> None:
        """Tells the service to end."""
        words.store_u32(self.address + ring.STOP, 1)

    def hold(self) -> object:
        """Returns what keeps the memory, beyond `close` too."""
        return self._mapping.hold()

    def is_served(self) -> bool:
        """Returns whether a service says that it serves the region now."""
        return words.load_u32(self.address + ring.SERVICE_STATE) == ServiceState.RUNNING

    def counters(self) -> dict[str, int]:
        """Returns a snapshot of what the service counts."""
        base = self.address + ring.COUNTERS
        return {
            name: words.load_u64(base + 8 * index) for index, name in enumerate(ring.COUNTER_NAMES)
        }

    def progress_address(self, slot: SlotPlaces, layer: int) -> int:
        """Returns the address of a layer's progress in this process."""
        return self.address + slot.answers[layer] + ring.ANSWER_PROGRESS

    def ready_address(self, slot: SlotPlaces, layer: int) -> int:
        """Returns the address of a layer's flag in this process."""
        return self.address + slot.answers[layer] + ring.READY

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

    def _state_address(self, places: SlotPlaces | InputPlaces, layer: int) -> int:
        is_slot = isinstance(places, SlotPlaces)
        states = ring.SLOT_STATES if is_slot else ring.INPUT_STATES
        return self.address + places.header + states + 8 * layer

    def _view(self, place: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        count = 1
        for size in shape:
            count *= size
        return self._bytes[place : place + count * dtype.itemsize].view(dtype).view(shape)


__all__ = ["Region"]
