"""Host memory that the core maps: of its own making, or a file's that somebody else made."""

from __future__ import annotations

import ctypes
import enum
import threading
import weakref

import torch

from gramary.native import _core
from gramary.process.events import tell_of_process


class Pages(enum.IntEnum):
    """How a mapping gets huge pages: not, by the kernel's work, or from the reserved pool."""

    BASE = 0
    TRANSPARENT = 1
    RESERVED = 2


class Mapped:
    """Memory mapped into this process until `close`, and beyond while anybody holds it.

    Tensors of it are holders, and so is what `hold` returns.

    Attributes:
        num_bytes: bytes that were asked for.
        address: address of the first byte.
    """

    def __init__(self, core: _core.HostMapping | _core.FileMapping, num_bytes: int) -> None:
        self._core: _core.HostMapping | _core.FileMapping | None = core
        self.num_bytes = num_bytes
        self.address = int(core.address)
        _mappings.all.add(self)

    def hold(self) -> object:
        """Returns what keeps the memory mapped as long as it is kept."""
        if self._core is None:
            raise AssertionError("the mapping was closed")
        return self._core.hold()

    def tensor(self) -> torch.Tensor:
        """Returns the memory as uint8 [num_bytes], which stays mapped as long as the tensor is."""
        array = (ctypes.c_uint8 * self.num_bytes).from_address(self.address)
        array.held = self.hold()  # type: ignore[attr-defined]
        return torch.frombuffer(array, dtype=torch.uint8)

    def close(self) -> None:
        """Lets go of the memory; a second call does nothing."""
        # Forgotten last: a close that is interrupted is gone on with by the next.
        if self._core is not None:
            self._core.close()
            self._core = None


class HostMapping(Mapped):
    """Zeroed shared memory of this process; other processes can map its descriptor.

    Args:
        num_bytes: bytes to hold, at least 1; rounded up to whole pages.
        pages: which pages to use.
        huge_page_bytes: size of a huge page, a power of two; not used for `Pages.BASE`.
        numa_node: node that the pages should come from; None has no preference.

    Attributes:
        mapped_bytes: bytes mapped: `num_bytes` rounded up to whole pages.
        page_bytes: bytes of the page that `mapped_bytes` is a multiple of.
        huge_bytes: bytes known to lie in huge pages.
        on_numa_node: whether the kernel took the preference for a NUMA node.
        descriptor: file descriptor of the memory, owned by this object; -1 once it is closed.

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
        node = -1 if numa_node is None else numa_node
        core = _core.HostMapping.create(num_bytes, int(pages), huge_page_bytes, node)
        super().__init__(core, num_bytes)
        self.pages = pages
        self.mapped_bytes = int(core.mapped_bytes)
        self.page_bytes = int(core.page_bytes)
        self.huge_bytes = int(core.huge_bytes)
        self.on_numa_node = bool(core.on_numa_node)
        self.descriptor = int(core.descriptor)

    def populate(self) -> None:
        """Takes all pages now, on all threads, huge ones where that works.

        Raises:
            OSError: no page is left.
        """
        assert isinstance(self._core, _core.HostMapping)
        self._core.populate()
        self.huge_bytes = int(self._core.huge_bytes)

    def close(self) -> None:
        """Lets go of the memory and closes the descriptor; a second call does nothing."""
        super().close()
        self.descriptor = -1


class FileMapping(Mapped):
    """Memory of a file that somebody else made, mapped through its descriptor.

    Args:
        descriptor: of the file; stays the caller's.
        num_bytes: bytes to map from its start on, at least 1.
        is_writable: whether the memory is to be written; the descriptor must allow it.

    Raises:
        OSError: the file is shorter, or cannot be mapped.
    """

    def __init__(self, descriptor: int, num_bytes: int, *, is_writable: bool) -> None:
        core = _core.FileMapping.create(descriptor, num_bytes, is_writable)
        super().__init__(core, num_bytes)


class _Mappings:
    """All mappings of this process, which outlive the interpreter."""

    def __init__(self) -> None:
        self.all: weakref.WeakSet[Mapped] = weakref.WeakSet()
        tell_of_process(self)

    def interpreter_ends(self, deadline: float) -> None:  # noqa: ARG002
        """Lets go of every mapping, and leaves the memory to threads that may be reading it."""
        _core.keep_all_mappings()
        for mapping in list(self.all):
            mapping.close()
        if threading.active_count() > 1:
            # What a thread stands in is not freed, and is no leak.
            _core.ignore_leaks()

    def forked(self) -> None:
        """Has the child blame nobody for what its parent's threads stood in."""
        _core.ignore_leaks()


_mappings = _Mappings()


__all__ = ["FileMapping", "HostMapping", "Mapped", "Pages"]
