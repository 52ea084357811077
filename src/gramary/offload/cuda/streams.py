"""The current stream of a CUDA device: waiting for a word of memory, in order.

A stream memory operation costs about a microsecond, holds no multiprocessor, and can be captured
into a graph.

Source: CUDA Driver API, section Stream Memory Operations (cuStreamWaitValue32).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch

from gramary.errors import DependencyError, UnsupportedError

logger = logging.getLogger("gramary")


class Event(Protocol):
    """A point in a stream, with its time."""

    def record(self) -> None:
        """Queues the event on the current stream."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Returns milliseconds from this event to another; both have happened."""


class Streams(Protocol):
    """What the connector asks of a device's streams; each call is about the current one."""

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the device current for a block."""

    def key(self) -> int:
        """Tells streams apart."""

    def is_capturing(self) -> bool:
        """Returns whether the stream is captured into a graph."""

    def wait(self, address: int, value: int) -> None:
        """Holds the stream until the 32-bit word there is `value` or newer, counted around."""

    def new_event(self) -> Event:
        """Returns an event with a time; one made in a capture is recorded by every replay."""

    def synchronize(self) -> None:
        """Waits until every stream of the device has done what it was given."""


class CudaStreams:
    """The streams of one CUDA device.

    Args:
        device: the device, with its index.

    Attributes:
        way: how words are waited for.

    Raises:
        DependencyError: the package `cuda-bindings` is missing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._wait, self.way = memory_operations(device)

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the device current; see `Streams`."""
        return torch.cuda.device(self._device)

    def key(self) -> int:
        """Returns the current stream's handle."""
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def is_capturing(self) -> bool:
        """Returns whether the current stream is captured."""
        return torch.cuda.is_current_stream_capturing()

    def wait(self, address: int, value: int) -> None:
        """Holds the current stream; see `Streams`."""
        self._wait(address, value)

    def new_event(self) -> Event:
        """Returns a timing event; see `Streams`."""
        make: Any = torch.cuda.Event
        event: Event = make(enable_timing=True, external=self.is_capturing())
        return event

    def synchronize(self) -> None:
        """Waits for the whole device."""
        torch.cuda.synchronize(self._device)


def memory_operations(device: torch.device) -> tuple[Callable[[int, int], None], str]:
    """Returns how to wait until the word at an address is a value, and which way that is.

    Raises:
        DependencyError: the package `cuda-bindings` is missing.
    """
    why_not = why_no_memory_operations(device)
    if why_not is None:
        return _DriverOperations(device).wait, "stream memory operations"
    logger.warning("no stream memory operations on %s (%s): tiny kernels wait", device, why_not)
    from gramary.offload.cuda import flags
    from gramary.offload.cuda.loading import load

    with torch.cuda.device(device):
        load(flags.wait_kernel, (1,), 0, 0, num_warps=1)
    return flags.wait_word, f"tiny kernels ({why_not})"


def why_no_memory_operations(device: torch.device) -> str | None:
    """Returns None where a device and its driver have stream memory operations, else why not.

    Raises:
        DependencyError: the package `cuda-bindings` is missing.
    """
    driver = _load_driver()
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
    error, found = driver.cuDeviceGetAttribute(attribute, device.index or 0)
    if error != driver.CUresult.CUDA_SUCCESS:
        return f"cuDeviceGetAttribute gave {getattr(error, 'name', error)}"
    if not found:
        return "the device or its driver lacks them"
    # A driver may still forbid them: try one, on a word that is there already.
    word = torch.ones(1, dtype=torch.int32, device="cpu", pin_memory=True)
    try:
        with torch.cuda.device(device):
            _DriverOperations(device).wait(word.data_ptr(), 1)
            torch.cuda.current_stream(device).synchronize()
    except UnsupportedError as error_raised:
        return str(error_raised)
    return None


class _DriverOperations:
    """The driver's own calls, on the current stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._driver = _load_driver()
        self._device = device

    def wait(self, address: int, value: int) -> None:
        """Queues a wait until the word is at least `value`, counted around."""
        flags = self._driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        self._call(self._driver.cuStreamWaitValue32, address, value, int(flags))

    def _call(self, function: Callable[..., tuple[Any]], *arguments: int) -> None:
        stream = self._driver.CUstream(torch.cuda.current_stream(self._device).cuda_stream)
        (error,) = function(stream, *arguments)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            name = getattr(function, "__name__", "the driver")
            raise UnsupportedError(f"{name} gave {getattr(error, 'name', error)}")


def _load_driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DependencyError(
            "requests in the order of a CUDA stream need cuda-bindings: pip install 'gramary[cuda]'"
        ) from error
    return driver


__all__ = ["CudaStreams", "Streams", "memory_operations", "why_no_memory_operations"]
