"""What the device keeps for each slot, and the addresses at which it finds the slot's parts."""

from __future__ import annotations

import torch

from gramary.native.ring import RingFields, SlotPlaces
from gramary.offload.memory.region import Region

# A slot's failure record, int64 each: 1 if there is one, the request's number, table, then the
# answer's number, failure, errno, file and offset.
FAILURE_WORDS = 8


class DeviceSlot:
    """One slot as kernels see it. Everything is allocated here, nothing later but what is brought.

    Args:
        region: the shared memory, registered with CUDA.
        places: where the slot's parts lie.
        device: the device of the rows.
        failure: int64 [FAILURE_WORDS] in pinned host memory.
        token_errors: int64 [num_tables, 4] in pinned host memory; a stream's slot only.

    Attributes:
        counter: int64 on the device, the newest request of a stream's slot.
        request_programs, take_programs, verdicts: int64 words on the device, the latter two one a
            table.
        device: the device of the rows.
        header_address, released_address: where it sees the slot's header, and the released number.
        ids: a stream's slot: int64 [max_tokens * heads] on the device for each table.
        is_stream: whether it is a stream's slot.
    """

    def __init__(
        self,
        region: Region,
        places: SlotPlaces,
        device: torch.device,
        failure: torch.Tensor,
        token_errors: torch.Tensor | None = None,
    ) -> None:
        shape = region.ring.shape
        self._region = region
        self.device = device
        self.places = places
        base = region.device_address
        self.header_address = base + places.header
        self.released_address = self.header_address + RingFields.RELEASED
        self._answers = [base + place for place in places.answers]
        self._shown_ids = [base + place for place in places.ids]
        self._rows = [base + place for place in places.rows]
        self.failure = failure
        self.is_stream = token_errors is not None
        self.num_tables = shape.num_tables
        words = torch.zeros(2 + 2 * shape.num_tables, dtype=torch.int64, device=device)
        self.counter, self.request_programs = words[0:1], words[1:2]
        self.take_programs = words[2 : 2 + shape.num_tables].unbind()
        self.verdicts = words[2 + shape.num_tables :].unbind()
        self.token_errors = () if token_errors is None else token_errors.unbind()
        self.ids = tuple(
            torch.empty(shape.max_tokens * heads if self.is_stream else 0, dtype=torch.int64,
                        device=device)
            for heads in shape.num_heads
        )  # fmt: skip

    def answer_address(self, table_index: int) -> int:
        """Where it sees a table's answer."""
        return self._answers[table_index]

    def ready_address(self, table_index: int) -> int:
        """Where it sees a table's flag."""
        return self.answer_address(table_index) + RingFields.READY

    def progress_address(self, table_index: int) -> int:
        """Where it sees a table's progress."""
        return self.answer_address(table_index) + RingFields.ANSWER_PROGRESS

    def state_address(self, table_index: int, number: int) -> int:
        """Where it sees a table's state word: in a stream's slot, or with a request's inputs."""
        places = self.places if self.is_stream else self._region.ring.input(number)
        return self._region.device_address + places.states + 8 * table_index

    def ids_address(self, table_index: int) -> int:
        """Where it sees the ids that the service sees."""
        return self._shown_ids[table_index]

    def known_ids_address(self, table_index: int) -> int:
        """Where the consumer finds the ids: on the device for a stream's slot, else in the slot."""
        return self.ids[table_index].data_ptr() if self.is_stream else self.ids_address(table_index)

    def rows_address(self, table_index: int) -> int:
        """Where it sees a table's rows."""
        return self._rows[table_index]

    def rows(self, table_index: int, num_rows: int) -> torch.Tensor:
        """Returns a table's rows: uint8 [num_rows, row_bytes], in place."""
        heads = self._region.ring.shape.num_heads[table_index]
        return self._region.rows(self.places, table_index, num_rows // heads)

    def copy_of_ids(self, table_index: int, num_rows: int) -> torch.Tensor:
        """Returns a copy of a table's ids on the device, in the order of the current stream."""
        heads = self._region.ring.shape.num_heads[table_index]
        ids = self._region.ids(self.places, table_index, num_rows // heads)
        return torch.empty_like(ids, device=self.device).copy_(ids, non_blocking=True)


class DeviceSlots:
    """The slots of a region, and which stream has which of the stream lane's.

    Attributes:
        host, stream: slots of each lane, in the ring's order.
        failures: int64 [all slots, FAILURE_WORDS] in pinned memory: host slots, then streams'.
        token_errors: int64 [stream slots, tables, 4] in pinned memory (see
            `gramary.ops._triton.sticky_error`).
    """

    def __init__(self, region: Region, device: torch.device) -> None:
        layout = region.ring
        pins = device.type == "cuda"
        num_host, num_stream = len(layout.host_slots), len(layout.stream_slots)
        self.failures = torch.zeros(
            num_host + num_stream, FAILURE_WORDS, dtype=torch.int64, device="cpu", pin_memory=pins
        )
        self.token_errors = torch.zeros(
            num_stream, layout.shape.num_tables, 4, dtype=torch.int64, device="cpu", pin_memory=pins
        )
        self.host = tuple(
            DeviceSlot(region, places, device, self.failures[i])
            for i, places in enumerate(layout.host_slots)
        )
        self.stream = tuple(
            DeviceSlot(region, places, device, self.failures[num_host + i], self.token_errors[i])
            for i, places in enumerate(layout.stream_slots)
        )
        self._by_places = {slot.places: slot for slot in (*self.host, *self.stream)}

    def at(self, places: SlotPlaces) -> DeviceSlot:
        """Returns the slot at its places."""
        return self._by_places[places]


__all__ = ["DeviceSlot", "DeviceSlots"]
