"""The row service in a process of its own: started, watched and stopped by the engine.

The worker inherits descriptors: of the shared region, of the host tiers' memory (so that there is
no second copy of a row), and of a description of the tables. It opens the disk tiers' files by
itself, runs `python -m gramary.offload.worker`, and ends with its engine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from gramary.errors import RowFetchError
from gramary.offload import ring
from gramary.offload.region import Region
from gramary.offload.service import Service
from gramary.settings import Settings, inherited_environment
from gramary.table import Table
from gramary.tiers.disk import DiskTier
from gramary.tiers.host import HostTier
from gramary.tracing import Span

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0

# Variables that the worker keeps: it needs no settings from them.
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")


class ProcessService(Service):
    """One worker process for one region; it dies with this process.

    Args:
        region: the shared memory to serve.
        tables: the layers' tables, open in this process; their host rows are mapped, not copied.
        settings: `poll`, `num_threads` and the disk reader's settings are passed on.

    Attributes:
        process: the worker.

    Raises:
        RowFetchError: the worker ended while starting; the message holds what it said.
    """

    def __init__(self, region: Region, tables: Sequence[Table], settings: Settings) -> None:
        self._region = region
        self._is_stopped = False
        self._said = ""
        description, descriptors = describe(region, tables, settings)
        config = memory_file("gramary-worker", json.dumps(description).encode())
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gramary.offload.worker", str(config)],
                pass_fds=(config, *descriptors),
                env=worker_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        finally:
            os.close(config)
        self._await_start()

    def why_dead(self) -> str | None:
        """Returns how the worker ended, with the end of what it said; None while it lives."""
        if self._is_stopped:
            return "the row service was stopped"
        code = self.process.poll()
        if code is None:
            return None
        said = self._last_words()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"worker process {self.process.pid} {how}" + (f": {said[-500:]}" if said else "")

    def trace(self, on: bool) -> None:
        """Does nothing: what the worker does is not told."""

    def take_spans(self) -> list[Span]:
        """Returns none."""
        return []

    def stop(self) -> None:
        """Asks the worker to end, and ends it where it does not."""
        if self._is_stopped:
            return
        self._region.ask_to_stop()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._is_stopped = True
        if self.process.stderr is not None:
            self.process.stderr.close()

    def _last_words(self) -> str:
        errors = self.process.stderr
        if errors is None or errors.closed:
            return ""
        self._said += errors.read().decode(errors="replace")
        return self._said.strip()

    def _await_start(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._region.is_served():
            why = self.why_dead()
            if why is None and time.monotonic() < deadline:
                time.sleep(0.002)
                continue
            self.stop()
            raise RowFetchError(f"the row service did not start: {why or 'no sign of life'}")


def describe(
    region: Region, tables: Sequence[Table], settings: Settings
) -> tuple[dict[str, Any], list[int]]:
    """Returns what a worker must know, as JSON values, and the descriptors it inherits."""
    descriptors = [region.descriptor]
    layers = []
    for table in tables:
        layer: dict[str, Any] = {
            "spec": dataclasses.asdict(table.spec),
            "row_bytes": table.codec.row_bytes,
            "is_sent_on": table.device.type == "cuda",
        }
        for tier in table.tiers:
            extent: dict[str, Any] = {"first_row": tier.first_row, "num_rows": tier.num_rows}
            if isinstance(tier, HostTier):
                extent |= {"descriptor": tier.descriptor, "num_bytes": tier.nbytes}
                descriptors.append(tier.descriptor)
            elif isinstance(tier, DiskTier):
                extent["layout"] = dataclasses.asdict(tier.layout)
            else:
                continue
            layer[tier.name] = extent
        layers.append(layer)
    description = {
        "version": ring.VERSION,
        "parent": os.getpid(),
        "region": {"descriptor": region.descriptor, "num_bytes": region.num_bytes},
        "shape": dataclasses.asdict(region.ring.shape),
        "layers": layers,
        "settings": dataclasses.asdict(settings),
    }
    return description, descriptors


def memory_file(name: str, content: bytes) -> int:
    """Returns a descriptor of an anonymous file with this content, at its start."""
    descriptor = os.memfd_create(name)
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def worker_environment() -> dict[str, str]:
    """Returns the worker's environment: little, no GPU, and this process's import path."""
    kept = inherited_environment(_KEPT_VARIABLES)
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**kept, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


__all__ = ["ProcessService"]
