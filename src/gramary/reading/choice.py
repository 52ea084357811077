"""Which reader a table gets: by the device of its results."""

from __future__ import annotations

from collections.abc import Sequence

from gramary.errors import DependencyError
from gramary.reading.base import TableReader
from gramary.reading.cpu import CpuReader
from gramary.storage.allocation import StorageRequest
from gramary.tiers.base import Tier


def make_reader(request: StorageRequest, tiers: Sequence[Tier]) -> TableReader:
    """Returns a reader of the tiers for results on the request's device.

    Raises:
        DependencyError: the device is a CUDA device and Triton is missing.
    """
    if request.device.type != "cuda":
        return CpuReader(request.spec, request.codec, tiers)
    try:
        from gramary.reading.cuda import CudaReader
    except ImportError as error:
        raise DependencyError("CUDA tables need triton: pip install 'gramary[cuda]'") from error
    return CudaReader(request.spec, request.codec, tiers, request.device, request.settings)
