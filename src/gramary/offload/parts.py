"""What a connector is made of, held from the moment it is there, and ended in order."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from gramary.offload.memory.region import Region
from gramary.offload.service.base import Service

if TYPE_CHECKING:
    from gramary.offload.cuda.device import CudaDevice


class Parts:
    """The parts of one connector: put in one after the other, ended in the order that is safe.

    Nothing may outlive the memory that it reads, so a part is put in before it runs, and `close`
    ends all that are there. In a forked child it does nothing: there are no threads to end, and the
    memory is the parent's.

    Attributes:
        region: the shared memory; None before it is made, and once it is given back.
        service: the row service, likewise.
        device: the tables' CUDA device, likewise; None for CPU tables.
    """

    def __init__(self) -> None:
        self.region: Region | None = None
        self.service: Service | None = None
        self.device: CudaDevice | None = None
        self._owner_pid = os.getpid()
        self._turn = threading.RLock()

    def close(self) -> None:
        """Ends everything; may be called again, and then ends what is left."""
        if os.getpid() != self._owner_pid:
            return
        with self._turn:
            # A part that was ended is forgotten before the next one's turn: each of them bears
            # being ended twice, but not without the memory.
            if self.service is not None:
                self.service.stop()
                self.service = None
            if self.device is not None:
                self.device.close()
                self.device = None
            if self.region is not None:
                self.region.close()
                self.region = None


__all__ = ["Parts"]
