"""The native core's own threads, one pool a process."""

from __future__ import annotations

from gramary.errors import SettingsError
from gramary.native import _core


def require_num_threads(num_threads: int) -> None:
    """Makes the pool of native threads with so many, the caller included; 0 takes any.

    Raises:
        SettingsError: the process has its pool already, and it has another number of threads.
    """
    if num_threads == 0:
        return
    _core.set_default_num_threads(num_threads)
    actual = _core.shared_num_threads()
    if actual != num_threads:
        _core.set_default_num_threads(actual)
        raise SettingsError(
            f"num_threads: {num_threads} were asked for, but the process has {actual} native "
            "threads since their first use; set GRAMARY_NUM_THREADS before the process starts, or "
            "give every table the same number"
        )


__all__ = ["require_num_threads"]
