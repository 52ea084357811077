"""The CPU instructions of the native core, chosen once a process by what the CPU has."""

from __future__ import annotations

from gramary.native import _core

_LEVELS = {"scalar": 0, "avx2": 1, "avx512": 2}


def cap_instructions(widest: str) -> None:
    """Lets the core use no wider instructions than these, in the whole process from now on.

    Every level computes the same bits. Asking for more than the CPU has gives what it has; a cap is
    never raised again, so the lowest of several holds.

    Args:
        widest: "avx512", "avx2", "scalar", or "auto" for no cap.
    """
    if widest != "auto":
        _core.cap_simd_level(_LEVELS[widest])


__all__ = ["cap_instructions"]
