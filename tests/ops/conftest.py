"""Fixtures of the operations' tests."""

from collections.abc import Iterator

import pytest

from gramary.native import _core

SIMD_LEVELS = {"scalar": 0, "avx2": 1, "avx512": 2}


@pytest.fixture(params=SIMD_LEVELS)
def simd_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test once on every instruction set that this CPU has."""
    level = SIMD_LEVELS[request.param]
    if level > _core.detected_simd_level():
        pytest.skip(f"this CPU has no {request.param}")
    _core.set_simd_level(level)
    yield request.param
    _core.set_simd_level(_core.detected_simd_level())
