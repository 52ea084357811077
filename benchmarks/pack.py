"""Building a pack against copying the same bytes: reading, writing and syncing at full speed.

python -m benchmarks.pack [--table-gib 2] [--folder DIR] [--out FILE] [--smoke]
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from benchmarks.disk_files import describe_table, drop_cache, main, write_random_file
from benchmarks.harness import Benchmark, Case
from benchmarks.timers import CpuTimer
from gramary.pack import build_pack, verify_pack

CHUNK_BYTES = 32 << 20
# 70 % of the machine's sequential read-write rate.
TARGET = 1 / 0.7


def build(smoke: bool, table_gib: float = 2.0, folder: str | None = None) -> Iterator[Case]:
    """Yields the one case: fp8 rows of a file, kept as they are."""
    with tempfile.TemporaryDirectory(prefix="gramary-bench-", dir=folder) as scratch:
        path = Path(scratch) / "table.bin"
        write_random_file(path, 64 << 20 if smoke else int(table_gib * 2**30) // 4096 * 4096)
        source = describe_table(path)
        pack, copy = Path(scratch) / "table.pack", Path(scratch) / "table.copy"

        def clean() -> None:
            pack.unlink(missing_ok=True)
            copy.unlink(missing_ok=True)
            drop_cache(str(path))

        def check() -> int:
            build_pack(source, pack)
            verify_pack(pack, against=source)
            return source.layout.nbytes

        yield Case(
            name="fp8 rows, kept",
            parameters={"table_bytes": source.layout.nbytes},
            candidates={
                "gramary pack": lambda: build_pack(source, pack),
                "copy with O_DIRECT": lambda: copy_file(path, copy, source.layout.nbytes),
            },
            baseline="copy with O_DIRECT",
            check=check,
            checked="every byte of the pack was compared with the source",
            moved_bytes=2 * source.layout.nbytes,
            cache="cold",
            cache_note="source dropped from the page cache; space reserved first, fsync at the end",
            before=clean,
            targets={"gramary pack": TARGET},
            timer=CpuTimer(once=True),
            num_samples=2 if smoke else 5,
        )


def copy_file(source: Path, target: Path, num_bytes: int) -> None:
    """Copies a file past the page cache, reading the next chunk while one is written."""
    reading = os.open(source, os.O_RDONLY | os.O_DIRECT)
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    num_bytes = num_bytes // 4096 * 4096
    buffers = [mmap.mmap(-1, CHUNK_BYTES) for _ in range(2)]
    pending: Future[int] | None = None
    try:
        os.posix_fallocate(writing, 0, num_bytes)
        with ThreadPoolExecutor(1) as executor:
            for turn, offset in enumerate(range(0, num_bytes, CHUNK_BYTES)):
                buffer = buffers[turn % 2]
                count = min(os.preadv(reading, [buffer], offset), num_bytes - offset)
                if pending is not None:
                    pending.result()
                data = memoryview(buffer)[:count]
                pending = executor.submit(os.pwrite, writing, data, offset)
            if pending is not None:
                pending.result()
        os.fsync(writing)
    finally:
        os.close(reading)
        os.close(writing)


BENCHMARK = Benchmark(
    name="pack",
    build=build,
    sources=("benchmarks/pack.py", "benchmarks/disk_files.py", "src/gramary/pack/*"),
)


if __name__ == "__main__":
    main(BENCHMARK)
