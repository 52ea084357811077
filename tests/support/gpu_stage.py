"""What GPU tests share."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def forbid_synchronisation() -> Iterator[None]:
    """Makes every torch call that waits for the device raise RuntimeError."""
    with warnings.catch_warnings():
        # torch warns that this mode does not see every kind of waiting.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
