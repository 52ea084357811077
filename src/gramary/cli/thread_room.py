"""How many threads this process may still start, and libraries that end it where they get none.

Where a limit on processes leaves no thread, libraries do not do with fewer: OpenBLAS interrupts the
process while numpy is imported (raise(SIGINT) in blas_server.c), OpenMP ends it with code 1
(libgomp, team.c), the tokenizers panic, and transformers' loader fails. Each takes the number of
its threads from the environment, so the room is looked at before any is imported.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

from gramary.settings import set_for_libraries

logger = logging.getLogger("gramary")

# A CPU's worth for each of OpenBLAS, OpenMP and the tokenizers, and some of our own.
THREADS_PER_CPU = 3
OWN_THREADS = 16
# A machine that starts so many has no limit that matters.
MAX_PROBED = 256

# What keeps each library on the thread that calls it.
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
}


def count_startable(wanted: int) -> int:
    """Returns how many threads could be started beside each other, at most `wanted`."""
    gate = threading.Event()
    threads: list[threading.Thread] = []
    try:
        for _ in range(wanted):
            thread = threading.Thread(target=gate.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except (RuntimeError, MemoryError):
        # One more is too many.
        pass
    finally:
        gate.set()
        for thread in threads:
            thread.join()
    return len(threads)


def num_wanted() -> int:
    """Returns the threads that a command may come to start with all its libraries."""
    return min(MAX_PROBED, THREADS_PER_CPU * len(os.sched_getaffinity(0)) + OWN_THREADS)


def fit_libraries() -> None:
    """Keeps libraries on one thread each where the machine has no room for theirs."""
    wanted = num_wanted()
    startable = count_startable(wanted)
    if startable == wanted:
        return
    set_for_libraries(ONE_THREAD)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    logger.warning(
        "only %d more threads may be started here: libraries work on one thread each; raise the "
        "limit on processes (ulimit -u, the cgroup's pids.max)",
        startable,
    )


__all__ = ["count_startable", "fit_libraries", "num_wanted"]
