"""Whether the windows of a layer's requests fit into the machine, asked before they are taken."""

from __future__ import annotations

import torch

from gramary.errors import CapacityError
from gramary.machine.memory import read_host_room, require_room
from gramary.settings import Settings

# Less is not asked about: asking takes half a millisecond, as long as a small forward.
ASKED_FROM_BYTES = 64 << 20


def require_window_memory(num_requests: int, window_bytes: int, device: torch.device) -> None:
    """Compares the windows of some requests with what their device has.

    Args:
        num_requests: requests, a window each.
        window_bytes: bytes of a window.
        device: where the windows are to lie.

    Raises:
        CapacityError: they cannot fit; the message has the numbers.
    """
    num_bytes = num_requests * window_bytes
    if num_bytes < ASKED_FROM_BYTES:
        return
    what = f"the windows of {num_requests} requests"
    if device.type == "cpu":
        room = read_host_room(Settings.from_env())
        require_room(what, num_bytes, room, locking=False, remedy="give num_requests less")
    elif device.type == "cuda":
        # Of all bytes: what torch keeps for itself counts as taken, and is there for this.
        _, total = torch.cuda.mem_get_info(device)
        if num_bytes > total:
            raise CapacityError(
                f"{what} need {num_bytes:,} bytes, but {device} has {total:,}; give num_requests "
                "less"
            )


__all__ = ["require_window_memory"]
