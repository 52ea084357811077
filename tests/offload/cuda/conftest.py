"""A connector whose CUDA side runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda_side_stage import CallingThread, use_cuda_side

from gramary import Connector


@pytest.fixture
def streams() -> CallingThread:
    return CallingThread()


@pytest.fixture
def cuda_connector(
    monkeypatch: pytest.MonkeyPatch, streams: CallingThread
) -> Callable[..., Connector]:
    """`cuda_connector(tables, ...)`: a Connector that takes CPU tables for CUDA tables."""
    use_cuda_side(monkeypatch, streams)
    return Connector
