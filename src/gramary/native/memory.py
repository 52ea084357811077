"""Host memory of the core's own making: memfd mappings with huge pages and a NUMA preference."""

from __future__ import annotations

import ctypes
import enum

import torch

from gramary.native import _core


class Pages(enum.IntEnum):
    """How a mapping gets huge pages: not, by the kernel's work, or from the reserved pool."""

    BASE = 0
    TRANSPARENT = 1
    RESERVED = 2


class HostMapping:
    """Zeroed shared memory of this process; other processes can map its descriptor.

    Args:
        num_bytes: bytes to hold, at least 1; rounded up to whole pages.
        pages: which pages to use.
        huge_page_bytes: size of a huge page, a power of two; not used for `Pages.BASE`.
        numa_node: node that the pages should come from; None has no preference.

    Raises:
        OSError: the machine refuses the memory.
    """

    def __init__(
        self,
        num_bytes: int,
        pages: Pages = Pages.BASE,
        huge_page_bytes: int = 0,
        numa_node: int | None = None,
    ) -> None:
        if num_bytes < 1 or (pages != Pages.BASE and huge_page_bytes.bit_count() != 1):
            raise AssertionError((num_bytes, pages, huge_page_bytes))
        self.num_bytes = num_bytes
        self.pages = pages
        node = -1 if numa_node is None else numa_node
        self.core = _core.HostMapping.create(num_bytes, int(pages), huge_page_bytes, node)

    def populate(self) -> None:
        """Takes all pages now, on all threads, huge ones where that works.

        Raises:
            OSError: no page is left.
        """
        self.core.populate()

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return int(self.core.address)

    @property
    def mapped_bytes(self) -> int:
        """Bytes mapped: `num_bytes` rounded up to whole pages."""
        return int(self.core.mapped_bytes)

    @property
    def page_bytes(self) -> int:
        """Bytes of the page that `mapped_bytes` is a multiple of."""
        return int(self.core.page_bytes)

    @property
    def huge_bytes(self) -> int:
        """Bytes known to lie in huge pages."""
        return int(self.core.huge_bytes)

    @property
    def on_numa_node(self) -> bool:
        """Whether the kernel took the preference for a NUMA node."""
        return bool(self.core.on_numa_node)

    @property
    def descriptor(self) -> int:
        """File descriptor of the memory, owned by this object."""
        return int(self.core.descriptor)

    def tensor(self) -> torch.Tensor:
        """Returns the memory as uint8 [num_bytes]; it must not be used after `close`."""
        return tensor_at(self.address, self.num_bytes)

    def close(self) -> None:
        """Gives the memory and the descriptor back; a second call does nothing."""
        self.core.close()


def tensor_at(address: int, num_bytes: int) -> torch.Tensor:
    """Returns memory of this process as uint8 [num_bytes]; the caller sees that it stays."""
    array = (ctypes.c_uint8 * num_bytes).from_address(address)
    return torch.frombuffer(array, dtype=torch.uint8)


__all__ = ["HostMapping", "Pages", "tensor_at"]
