"""Window slots: who holds which, how far each may roll back, and windows kept for reuse."""

from gramary.slots.pool import SlotPool
from gramary.slots.records import WindowCheckpoint

__all__ = ["SlotPool", "WindowCheckpoint"]
