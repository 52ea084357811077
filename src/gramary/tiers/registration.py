"""Registering host memory with CUDA, in pieces that end on rows, and undoing it.

A registered range is locked and can be read by every GPU of the process. One huge registration
fails on some drivers, so that smaller pieces are tried after it; a piece ends where a row and a
page end together, so that no row and no page lies in two of them.

Source: CUDA Runtime API, section Memory Management (cudaHostRegister,
cudaHostGetDevicePointer).
"""

from __future__ import annotations

import dataclasses
import math
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

from gramary.errors import DependencyError, UnsupportedError
from gramary.placement.grammar import format_bytes
from gramary.settings import GIB

# Largest piece of each way, tried in this order.
WAYS = (1 << 62, 4 * GIB, GIB >> 2)


class HostRegistry(Protocol):
    """The three CUDA calls that registration needs; each raises OSError on failure."""

    def register(self, address: int, num_bytes: int) -> None:
        """Locks a range and makes it visible to the GPUs."""

    def unregister(self, address: int) -> None:
        """Undoes `register` of the range that starts at `address`."""

    def device_address(self, address: int) -> int:
        """Returns the address at which GPUs see a registered host address."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A range of addresses registered as one."""

    address: int
    num_bytes: int


def cut_pieces(
    address: int, num_bytes: int, row_bytes: int, page_bytes: int, largest: int
) -> Iterator[Piece]:
    """Yields pieces of at most `largest` bytes that end where a row and a page end together.

    Args:
        address: start of the range, aligned to `page_bytes`.
        num_bytes: bytes of the range.
        row_bytes: bytes of a row.
        page_bytes: bytes of a page.
        largest: largest piece wanted; a piece has at least lcm(row_bytes, page_bytes) bytes.
    """
    unit = math.lcm(row_bytes, page_bytes)
    step = max(unit, largest // unit * unit)
    for first in range(0, num_bytes, step):
        yield Piece(address + first, min(step, num_bytes - first))


class Registration:
    """A range of host memory registered with CUDA until `close`, or until nobody holds it.

    Args:
        address: start of the range, aligned to `page_bytes`.
        num_bytes: bytes of the range.
        row_bytes: bytes of a row.
        page_bytes: bytes of a page.
        registry: the CUDA calls to use.
        memory: what owns the range; kept alive as long as it is registered.

    Attributes:
        device_address: where GPUs see the range.
        piece_bytes: bytes of each piece but the last; no copy engine reads across two of them.
        way: in words, how the range was registered.

    Raises:
        UnsupportedError: no way works; everything registered on the way was undone.
    """

    def __init__(
        self,
        address: int,
        num_bytes: int,
        row_bytes: int,
        page_bytes: int,
        registry: HostRegistry,
        memory: object = None,
    ) -> None:
        self._registry = registry
        self._pieces: list[Piece] = []
        # A table that nobody closed must not leave pages locked, or unmap them while they are.
        finalizer = weakref.finalize(self, _unregister, self._pieces, registry, os.getpid(), memory)
        # At the end of the interpreter a GPU may still be reading, and nothing is unmapped.
        finalizer.atexit = False
        failures: list[str] = []
        for largest in WAYS:
            pieces = list(cut_pieces(address, num_bytes, row_bytes, page_bytes, largest))
            if failures and len(pieces) == 1:
                continue
            try:
                self._register(pieces)
            except OSError as error:
                failures.append(f"{_describe(pieces)}: {error}")
                continue
            self.piece_bytes = pieces[0].num_bytes
            self.device_address = registry.device_address(address)
            self.way = "; ".join([*failures, f"registered {_describe(pieces)}"])
            return
        raise UnsupportedError(
            f"CUDA did not register {num_bytes:,} bytes of host memory ({'; '.join(failures)}); "
            "raise the lock limit (ulimit -l), or set GRAMARY_PIN_HOST=0 to let CPU threads "
            "gather host rows"
        )

    def close(self) -> None:
        """Unregisters everything, in reverse; a second call does nothing."""
        _unregister(self._pieces, self._registry, os.getpid(), None)

    def _register(self, pieces: list[Piece]) -> None:
        try:
            for piece in pieces:
                self._registry.register(piece.address, piece.num_bytes)
                self._pieces.append(piece)
        except OSError:
            self.close()
            raise


class CudaHostRegistry:
    """The CUDA runtime's own calls, for the current process.

    Args:
        device_index: the GPU whose context is used.
        is_read_only: the memory is mapped for reading only.

    Raises:
        DependencyError: the package `cuda-bindings` is missing.
    """

    def __init__(self, device_index: int, *, is_read_only: bool = False) -> None:
        try:
            from cuda.bindings import runtime
        except ImportError as error:
            raise DependencyError(
                "registering host memory needs cuda-bindings: pip install 'gramary[cuda]'"
            ) from error
        self._runtime = runtime
        self._device_index = device_index
        self._is_read_only = is_read_only

    def register(self, address: int, num_bytes: int) -> None:
        """Registers a range as mapped and portable (visible to all GPUs)."""
        flags = self._runtime.cudaHostRegisterMapped | self._runtime.cudaHostRegisterPortable
        if self._is_read_only:
            flags |= self._runtime.cudaHostRegisterReadOnly
        self._call(self._runtime.cudaHostRegister, address, num_bytes, flags)

    def unregister(self, address: int) -> None:
        """Unregisters the range that starts at `address`, once no GPU work reads it any more."""
        self._call(self._runtime.cudaDeviceSynchronize)
        self._call(self._runtime.cudaHostUnregister, address)

    def device_address(self, address: int) -> int:
        """Returns the GPUs' address of a registered host address."""
        return int(self._call(self._runtime.cudaHostGetDevicePointer, address, 0))

    def pci_address(self) -> str:
        """Returns the GPU's PCI address, such as "0000:1b:00.0"."""
        error, address = self._runtime.cudaDeviceGetPCIBusId(32, self._device_index)
        self._require_success("cudaDeviceGetPCIBusId", error)
        return bytes(address).split(b"\0", 1)[0].decode()

    def _call(self, function: Callable[..., tuple[object, ...]], *arguments: int) -> int:
        import torch

        with torch.cuda.device(self._device_index):
            error, *values = function(*arguments)
        self._require_success(function.__name__, error)
        return int(values[0]) if values else 0  # type: ignore[call-overload]

    def _require_success(self, name: str, error: object) -> None:
        if error != self._runtime.cudaError_t.cudaSuccess:
            # The runtime keeps the error and would give it to whoever asks next.
            self._runtime.cudaGetLastError()
            raise OSError(f"{name} gave {getattr(error, 'name', error)}")


def _unregister(
    pieces: list[Piece], registry: HostRegistry, owner_pid: int, _memory: object
) -> None:
    """Unregisters pieces in reverse; a forked child has none of the parent's registrations."""
    while pieces and os.getpid() == owner_pid:
        registry.unregister(pieces.pop().address)


def _describe(pieces: list[Piece]) -> str:
    if len(pieces) == 1:
        return f"in one piece of {format_bytes(pieces[0].num_bytes)}"
    return f"in {len(pieces)} pieces of {format_bytes(pieces[0].num_bytes)}"
