"""One built package of two that are compared: a process that reads on command and says how long.

    python -m benchmarks.core_side TABLE        with the package's folder first on PYTHONPATH

Each line of its input is a JSON list, a method of `Side` and its arguments; each line of its output
is what that returned. It uses what both packages have.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.disk_files import byte_offsets, describe_table, distinct_blocks
from gramary.native import _core
from gramary.native.raw_disk import lane_shape, read_blocks_raw, read_rows_raw
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier

BLOCK_BYTES = 4096
# Length of a warm sample.
SAMPLE_US = 20_000.0


class Side:
    """The table, opened by this package, and what can be timed on it.

    Args:
        path: the table's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._layout = describe_table(path).layout
        settings = Settings(disk_reader="io_uring")
        self._tier = DiskTier(self._layout, 0, self._layout.num_rows, settings)

    def describe(self) -> dict[str, Any]:
        """Returns where the package lies, the hash of its core, and how deep its lanes read."""
        core = Path(_core.__file__)
        num_threads, depth = lane_shape()
        return {
            "package": str(core.parent.parent),
            "core_sha256": hashlib.sha256(core.read_bytes()).hexdigest(),
            "threads": num_threads,
            "depth": depth,
        }

    def digest(self, num_rows: int, is_bare: bool) -> str:
        """Returns the hash of the rows of the first batch, by the reader or by one pread each."""
        row_ids, out = next(self._batches(num_rows)), self._room(num_rows)
        if is_bare:
            read_rows_raw(self._path, byte_offsets(self._layout, row_ids), out)
        else:
            self._tier.gather(row_ids, out)
        return hashlib.sha256(out.numpy()).hexdigest()

    def time_cold(self, num_rows: int, is_bare: bool) -> float:
        """Returns the microseconds of one batch, by the reader or by a bare ring of its blocks."""
        row_ids = next(self._batches(num_rows))
        if is_bare:
            blocks = distinct_blocks(self._layout, row_ids)
            return _time(lambda: read_blocks_raw(self._path, blocks, BLOCK_BYTES, *lane_shape()), 1)
        out = self._room(num_rows)
        return _time(lambda: self._tier.gather(row_ids, out), 1)

    def time_warm(self, num_rows: int, is_bare: bool) -> float:
        """Returns the microseconds of a batch, by the reader or by one pread a row."""
        batches, offsets = (itertools.cycle(each) for each in self._warm_batches(num_rows))
        out = self._room(num_rows)

        def read() -> None:
            self._tier.gather(next(batches), out)

        def read_bare() -> None:
            read_rows_raw(self._path, next(offsets), out)

        work = read_bare if is_bare else read
        calls = max(1, round(SAMPLE_US / max(_time(work, 20), 0.1)))
        return _time(work, calls)

    @functools.cache  # noqa: B019 (one object a process)
    def _warm_batches(self, num_rows: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        batches = list(itertools.islice(self._batches(num_rows), 100))
        return batches, [byte_offsets(self._layout, batch) for batch in batches]

    def _batches(self, num_rows: int) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(num_rows)
        while True:
            yield torch.randint(0, self._layout.num_rows, (num_rows,), generator=generator)

    def _room(self, num_rows: int) -> torch.Tensor:
        return torch.zeros(num_rows, self._layout.row_bytes, dtype=torch.uint8)


def _time(work: Callable[[], object], calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        work()
    return (time.perf_counter_ns() - start) / calls / 1e3


def main() -> None:
    """Answers until the input ends."""
    side = Side(Path(sys.argv[1]))
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(side, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
