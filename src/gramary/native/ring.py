"""The memory that an engine and its row service share, as the core lays it out.

`csrc/offload/ring.hpp` tells the life of a request and holds the structures; `layout.hpp` says
where each lies; `engine_view.hpp` says what each call of an `EngineView` does. Nothing of it is
written a second time in Python.
"""

from __future__ import annotations

from gramary.native import _core

# Offsets in the structures, and their sizes in bytes, by name: for kernels, and for tests.
RingFields = _core.RingFields

# What has become of a request, or of its inputs: the low bits of a state word.
Phase = _core.Phase
# Why a table's rows could not be had.
Failure = _core.Failure

RegionLayout = _core.RegionLayout
EngineView = _core.EngineView
StatePlaces = _core.StatePlaces
SlotPlaces = _core.SlotPlaces
InputPlaces = _core.InputPlaces


def state_of(number: int, phase: Phase) -> int:
    """Returns the state word of a request."""
    return _core.state_of(number, phase)


def progress_of(number: int, part: int) -> int:
    """Returns the progress word of a request whose rows' first `part` eighths are in place."""
    return _core.progress_of(number, part)


def failure_of(word: int) -> Failure:
    """Returns what a word of an answer says; `UNKNOWN` where no service wrote it."""
    return _core.failure_of(word)


__all__ = [
    "EngineView",
    "Failure",
    "InputPlaces",
    "Phase",
    "RegionLayout",
    "RingFields",
    "SlotPlaces",
    "StatePlaces",
    "failure_of",
    "progress_of",
    "state_of",
]
