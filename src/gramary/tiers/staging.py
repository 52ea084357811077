"""Pinned memory through which rows pass on their way to a GPU."""

from __future__ import annotations

import torch

from gramary.native.memory import HostMapping
from gramary.tiers.registration import HostRegistry, Registration


class Staging:
    """A ring of pinned slots; a slot may be filled again once its copy has left it.

    Not thread-safe: one user at a time.

    Args:
        num_slots: slots of the ring.
        slot_bytes: bytes of a slot.
        device: the CUDA device that the copies go to.
        registry: CUDA calls to register the memory with.

    Raises:
        OSError: the machine refuses the memory.
        UnsupportedError: CUDA does not register it.
    """

    def __init__(
        self, num_slots: int, slot_bytes: int, device: torch.device, registry: HostRegistry
    ) -> None:
        self.slot_bytes = slot_bytes
        self._mapping = HostMapping(num_slots * slot_bytes)
        try:
            self._mapping.populate()
            self._registration = Registration(
                self._mapping.address,
                self._mapping.mapped_bytes,
                slot_bytes,
                self._mapping.page_bytes,
                registry,
                self._mapping,
            )
        except BaseException:
            self._mapping.close()
            raise
        self._slots = self._mapping.tensor().view(num_slots, slot_bytes)
        with torch.cuda.device(device):
            self._copied = [torch.cuda.Event() for _ in range(num_slots)]  # type: ignore[no-untyped-call]
        self._next = 0

    def slot(self) -> torch.Tensor:
        """Returns the next slot uint8 [slot_bytes]; waits until its last copy has left it."""
        self._copied[self._next].synchronize()
        return self._slots[self._next]

    def sent(self) -> None:
        """Notes that a copy out of the slot was queued on the current stream."""
        self._copied[self._next].record()
        self._next = (self._next + 1) % len(self._copied)

    def close(self) -> None:
        """Unpins the memory and gives it back; no copy may be under way."""
        self._registration.close()
        self._mapping.close()
