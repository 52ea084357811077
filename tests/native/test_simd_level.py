"""The instruction set that the core found, against what the kernel reports."""

import pytest
import try_core

from gramary.native import _core
from gramary.settings import Settings


def test_the_core_finds_the_instruction_sets_that_the_kernel_reports() -> None:
    widest = Settings.from_env().instructions
    allowed = {"scalar": 0, "avx2": 1}.get(widest, 2)
    assert _core.detected_simd_level() == min(try_core.reported_level(), allowed)


@pytest.mark.needs("x86_64")
def test_no_level_above_the_detected_one_can_be_set() -> None:
    _core.set_simd_level(2)
    assert _core.simd_level() == _core.detected_simd_level()


def test_the_core_gives_the_published_rows() -> None:
    """What a wheel's core is tried with, on this core."""
    assert try_core.first_rows(_core) == try_core.FIRST_ROWS
    assert "seldom" in try_core.refusal(_core)
