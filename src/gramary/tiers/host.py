"""The host tier: rows in memory of our own, readable by the GPU where it is registered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from gramary.errors import CapacityError, ClosedError
from gramary.machine.memory import (
    HostRoom,
    HugePages,
    read_host_room,
    read_huge_pages,
    require_room,
)
from gramary.native import rows as native_rows
from gramary.native.memory import HostMapping, Pages
from gramary.native.rows import NO_ROWS, RowExtent
from gramary.settings import Settings
from gramary.tiers.base import Tier
from gramary.tiers.registration import HostRegistry, Registration
from gramary.tiers.row_counts import RowCounts
from gramary.tiers.share import SharedMapping


@dataclasses.dataclass(frozen=True)
class HostOptions:
    """How a host tier takes its memory.

    Attributes:
        room: what the machine has free; None reads it.
        huge_pages: what huge pages the machine has; None reads it.
        numa_node: node to prefer, such as the GPU's own; None has no preference.
        registry: CUDA calls to register the memory with; None leaves it plain memory.
        shared: memory that other processes share, taken over by the tier; None takes own memory.
    """

    room: HostRoom | None = None
    huge_pages: HugePages | None = None
    numa_node: int | None = None
    registry: HostRegistry | None = None
    shared: SharedMapping | None = None


class HostTier(Tier):
    """Rows in anonymous shared memory (memfd), so that a worker process can map the same pages.

    The memory is the rows' bytes rounded up to one page. What is free is compared before anything
    is taken. Huge pages come from the machine's reserved pool if it has enough, else by the
    kernel putting them behind the mapping where it can.

    Args:
        first_row: the table's row number of the first row held.
        num_rows: rows held.
        row_bytes: bytes of an encoded row.
        settings: `huge_pages`, `memory_limit_bytes` and `local_ranks` are used.
        options: how to take the memory.

    Attributes:
        rows: uint8 [num_rows, row_bytes], zero where nothing was written; empty after `close`. The
            memory is there as long as a tensor of it.
        descriptor: file descriptor of the memory, owned by the tier.
        counts: rows that were read here.

    Raises:
        CapacityError: less memory is free than the rows need, or the machine refuses it.
        UnsupportedError: CUDA does not register the memory.
    """

    name = "host"

    def __init__(
        self,
        first_row: int,
        num_rows: int,
        row_bytes: int,
        settings: Settings | None = None,
        options: HostOptions | None = None,
    ) -> None:
        super().__init__(first_row, num_rows, row_bytes)
        self.counts = RowCounts(row_bytes)
        settings, options = settings or Settings(), options or HostOptions()
        is_locking = options.registry is not None
        self._shared = options.shared
        huge_pages = options.huge_pages or read_huge_pages()
        wants_huge = settings.huge_pages and self.nbytes >= huge_pages.page_bytes > 0
        self._mapping: HostMapping | SharedMapping
        if options.shared is not None:
            self._mapping, self.is_filled = options.shared, options.shared.is_filled
        else:
            room = options.room or read_host_room(settings)
            remedy = "give the host fewer rows"
            require_room("host rows", self.nbytes, room, locking=is_locking, remedy=remedy)
            self._mapping = _take_memory(self.nbytes, huge_pages if wants_huge else None, options)
        self._registration: Registration | None = None
        try:
            if is_locking or wants_huge:
                self._mapping.populate()
            if options.registry is not None:
                self._registration = Registration(
                    self._mapping.address,
                    self._mapping.mapped_bytes,
                    row_bytes,
                    self._mapping.page_bytes,
                    options.registry,
                    self._mapping,
                )
        except OSError as error:
            self._mapping.close()
            raise _refused(self.nbytes, error) from error
        except BaseException:
            self._mapping.close()
            raise
        self._numa_node = options.numa_node if self._mapping.on_numa_node else None
        self.rows = self._mapping.tensor().view(num_rows, row_bytes)

    @property
    def descriptor(self) -> int:
        """File descriptor of the memory, for a worker process to map."""
        return self._mapping.descriptor

    def hold(self) -> object:
        """Returns what keeps the rows' memory, beyond `close` too."""
        return self._mapping.hold()

    @property
    def locked_bytes(self) -> int:
        """Bytes registered with CUDA, 0 for plain memory."""
        return self._mapping.mapped_bytes if self._registration else 0

    @property
    def extent(self) -> RowExtent:
        """The rows, as the CPU reads them; there until `close`."""
        address = self.rows.data_ptr()
        return RowExtent(address, self.first_row, self.num_rows, self.counts.read.address)

    @property
    def registered_extent(self) -> RowExtent:
        """The rows, as GPUs read them; no rows where the memory is not registered."""
        if self._registration is None:
            return NO_ROWS
        return RowExtent(self._registration.device_address, self.first_row, self.num_rows)

    def write(self, first_row: int, rows: torch.Tensor) -> None:
        """Copies rows first_row .. first_row + len(rows) - 1 in; `rows` may lie on any device."""
        first, end = first_row - self.first_row, first_row - self.first_row + rows.shape[0]
        step = self._registration.piece_bytes // self.row_bytes if self._registration else end + 1
        while first < end:
            # A copy from a GPU must not cross from one registered piece into the next.
            stop = min(end, (first // step + 1) * step)
            offset = first - (first_row - self.first_row)
            self.rows[first:stop].copy_(rows[offset : offset + stop - first])
            first = stop

    def rows_in_place(self) -> torch.Tensor:
        """Returns the rows' own memory, for a reader to fill while loading."""
        return self.rows

    def finish_writing(self) -> None:
        """Lets other processes see shared rows."""
        if self._shared is not None:
            self._shared.publish()

    def gather(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Fills `out` uint8 [n, row_bytes] with the rows of `row_ids` int64 [n], all held here.

        Raises:
            ClosedError: the tier was closed.
        """
        rows = self.rows
        if rows.shape[0] != self.num_rows:
            raise ClosedError("the host tier was closed")
        counter_address = self.counts.read.address
        extent = RowExtent(rows.data_ptr(), self.first_row, self.num_rows, counter_address)
        native_rows.gather(row_ids, extent, self.row_bytes, out)

    def stats(self) -> Mapping[str, int | float | str]:
        """Returns the memory taken, its pages, its NUMA node and how it was registered, and what
        was read here (see `RowCounts.facts`)."""
        return {
            **self.counts.facts(),
            "mapped_bytes": self._mapping.mapped_bytes,
            "huge_page_bytes": self._mapping.huge_bytes,
            "locked_bytes": self.locked_bytes,
            "numa_node": -1 if self._numa_node is None else self._numa_node,
            "registration": self._registration.way if self._registration else "plain memory",
            "shared": self._shared.path if self._shared else "no",
        }

    def close(self) -> None:
        """Unregisters the memory and gives it back; a second call does nothing."""
        if self._registration is not None:
            self._registration.close()
            self._registration = None
        self.rows = torch.empty(0, self.row_bytes, dtype=torch.uint8, device="cpu")
        self._mapping.close()


def _take_memory(num_bytes: int, huge_pages: HugePages | None, options: HostOptions) -> HostMapping:
    """Returns a mapping, from the reserved huge pages if they suffice."""
    if huge_pages is not None:
        page_bytes = huge_pages.page_bytes
        if huge_pages.free_bytes >= -(-num_bytes // page_bytes) * page_bytes:
            try:
                return HostMapping(num_bytes, Pages.RESERVED, page_bytes, options.numa_node)
            except OSError:
                # Somebody else took them meanwhile, or a cgroup forbids them.
                pass
    pages = Pages.BASE if huge_pages is None else Pages.TRANSPARENT
    page_bytes = 0 if huge_pages is None else huge_pages.page_bytes
    try:
        return HostMapping(num_bytes, pages, page_bytes, options.numa_node)
    except OSError as error:
        raise _refused(num_bytes, error) from error


def _refused(num_bytes: int, error: OSError) -> CapacityError:
    return CapacityError(
        f"the machine refused {num_bytes:,} bytes of host memory: {error}; give the host fewer "
        "rows and let disk take the rest (host=SIZE,disk)"
    )
