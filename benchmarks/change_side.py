"""One built package of two: rows of several files, read warm, on command.

    python -m benchmarks.change_side FOLDER     with the package's folder first on PYTHONPATH

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
from pathlib import Path
from typing import Any

import torch

from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun
from gramary.native import _core
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier

NUM_ROWS = 16
ROW_BYTES = 160
# Length of a sample.
SAMPLE_US = 20_000.0


class Side:
    """A table whose rows lie in the files of a folder, opened by this package.

    Args:
        folder: the files, of one size.
    """

    def __init__(self, folder: Path) -> None:
        files = tuple(RowFile.from_path(str(path)) for path in sorted(folder.iterdir()))
        self._per_file = files[0].size // ROW_BYTES
        runs = tuple(
            RowRun(
                index * self._per_file,
                self._per_file,
                (RowPart(index, 0, ROW_BYTES, 0, self._per_file, file.size, ROW_BYTES),),
            )
            for index, file in enumerate(files)
        )
        self._layout = RowLayout(files, ROW_BYTES, runs)
        settings = Settings(disk_reader="io_uring")
        self._tier = DiskTier(self._layout, 0, self._layout.num_rows, settings)
        self._out = torch.zeros(NUM_ROWS, ROW_BYTES, dtype=torch.uint8)

    def describe(self) -> dict[str, Any]:
        """Returns where the package lies, and the hash of its core."""
        core = Path(_core.__file__)
        digest = hashlib.sha256(core.read_bytes()).hexdigest()
        return {"package": str(core.parent.parent), "core_sha256": digest}

    def digest(self, num_files: int) -> str:
        """Returns the hash of the rows of the first batch over so many files."""
        self._tier.gather(self._batches(num_files)[0], self._out)
        return hashlib.sha256(self._out.numpy()).hexdigest()

    def time_warm(self, num_files: int) -> float:
        """Returns the microseconds of a batch of 16 rows over so many files."""
        batches = itertools.cycle(self._batches(num_files))
        calls = max(1, round(SAMPLE_US / max(self._time(batches, 50), 0.1)))
        return self._time(batches, calls)

    def _time(self, batches: Any, calls: int) -> float:
        gather, out = self._tier.gather, self._out
        start = time.perf_counter_ns()
        for _ in range(calls):
            gather(next(batches), out)
        return (time.perf_counter_ns() - start) / calls / 1e3

    @functools.cache  # noqa: B019 (one object a process)
    def _batches(self, num_files: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(num_files)
        files = torch.arange(NUM_ROWS) % num_files
        return [
            files * self._per_file
            + torch.randint(0, self._per_file, (NUM_ROWS,), generator=generator)
            for _ in range(100)
        ]


def main() -> None:
    """Answers until the input ends."""
    side = Side(Path(sys.argv[1]))
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(side, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
