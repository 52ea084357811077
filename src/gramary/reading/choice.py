"""Which reader a table gets: by the device of its results."""

from __future__ import annotations

from gramary.errors import DependencyError
from gramary.reading.base import TableReader
from gramary.reading.cpu import CpuReader
from gramary.storage.allocation import StorageRequest
from gramary.tiers.residency import Residency


def make_reader(request: StorageRequest, residency: Residency) -> TableReader:
    """Returns a reader of a table's rows for results on the request's device.

    Raises:
        DependencyError: the device is a CUDA device and Triton is missing.
    """
    if request.device.type != "cuda":
        return CpuReader(request.spec, request.codec, residency)
    try:
        from gramary.reading.cuda import CudaReader
    except ImportError as error:
        raise DependencyError("CUDA tables need triton: pip install 'gramary[cuda]'") from error
    return CudaReader(request.spec, request.codec, residency, request.device, request.settings)
