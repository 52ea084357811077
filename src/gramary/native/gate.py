"""Counting the calls inside an object, so that closing it waits for them."""

from __future__ import annotations

from gramary.native import _core

# How often who waits looks for signals.
LOOK_EVERY_S = 0.05


class Gate:
    """Lets calls in until it is shut; `with gate.using:` is one call inside.

    The block enters and leaves by compiled code: an interrupt finds the call inside or outside,
    never counted and gone.

    Args:
        error: what is raised where a call comes too late.
        message: its message.

    Attributes:
        using: the context manager, for any number of threads and blocks at once.
    """

    def __init__(self, error: type[Exception], message: str) -> None:
        self.using = _core.Gate(error, message)

    @property
    def is_shut(self) -> bool:
        """Whether new calls are kept out."""
        return self.using.is_shut

    def close(self) -> None:
        """Keeps new calls out and waits for those inside; every call does so."""
        self.using.shut()
        while not self.using.empty(LOOK_EVERY_S):
            pass


__all__ = ["Gate"]
