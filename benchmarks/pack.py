"""Building a pack against copying the same bytes: reading, writing and syncing at full speed; and
re-coding one against plain torch, and against keeping the same rows.

python -m benchmarks.pack [--table-gib 2] [--folder DIR] [--out FILE] [--smoke]
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.disk_files import (
    FP8,
    ROW_DIM,
    describe_table,
    drop_cache,
    main,
    write_finite_rows,
    write_random_file,
)
from benchmarks.harness import Benchmark, Case
from benchmarks.timers import CpuTimer
from gramary.files.layout import TableSource
from gramary.files.pack import build_pack, open_pack, verify_pack
from gramary.files.pack.recoding import scale_for
from gramary.files.stream import stream_rows
from gramary.model.codecs import Codec, encode_rows

CHUNK_BYTES = 32 << 20
# 70 % of the machine's sequential read-write rate.
TARGET = 1 / 0.7
BF16 = Codec("bf16", ROW_DIM)
RECODINGS = ((BF16, "fp8"), (BF16, "nvfp4"), (FP8, "nvfp4"), (FP8, "bf16"))


def build(smoke: bool, table_gib: float = 2.0, folder: str | None = None) -> Iterator[Case]:
    """Yields rows that are kept as they are, then each re-coding."""
    yield from _build_kept(smoke, table_gib, folder)
    for source_codec, target in RECODINGS:
        yield from _build_recoded(smoke, table_gib, folder, source_codec, target)


def _build_kept(smoke: bool, table_gib: float, folder: str | None) -> Iterator[Case]:
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


def _build_recoded(
    smoke: bool, table_gib: float, folder: str | None, source_codec: Codec, target: str
) -> Iterator[Case]:
    with tempfile.TemporaryDirectory(prefix="gramary-bench-", dir=folder) as scratch:
        path = Path(scratch) / "table.bin"
        # An eighth of the table that is kept: plain torch takes its time.
        num_bytes = 16 << 20 if smoke else int(table_gib * 2**27)
        write_finite_rows(
            path, source_codec, num_bytes // source_codec.row_bytes * source_codec.row_bytes
        )
        source = describe_table(path, source_codec)
        pack, kept, plain = (Path(scratch) / name for name in ("table.pack", "kept.pack", "plain"))

        def clean() -> None:
            for file in (pack, kept, plain):
                file.unlink(missing_ok=True)
            drop_cache(str(path))

        passes = 1 if target == "bf16" else 2
        yield Case(
            name=f"{source_codec.name} rows, re-coded to {target}",
            parameters={"table_bytes": source.layout.nbytes, "num_rows": source.spec.num_rows},
            candidates={
                "gramary pack": lambda: build_pack(source, pack, codec=target),
                "gramary pack, kept": lambda: build_pack(source, kept),
                "plain torch": lambda: recode_with_torch(source, target, plain),
            },
            baseline="plain torch",
            check=lambda: _compare_with_torch(source, target, pack, plain),
            checked="every row of the pack was compared with what plain torch wrote",
            moved_bytes=passes * source.layout.nbytes
            + source.spec.num_rows * Codec(target, ROW_DIM, 1.0 if passes == 2 else None).row_bytes,
            cache="cold",
            cache_note="source dropped from the page cache; fsync at the end",
            before=clean,
            timer=CpuTimer(once=True),
            num_samples=2 if smoke else 5,
        )


def recode_with_torch(source: TableSource, target: str, out: Path) -> float | None:
    """Writes the rows one after another, encoded by the reference codecs; returns the scale.

    Reads the table as loading does, first for its largest magnitude where there is a scale.
    """
    num_rows, scale = source.layout.num_rows, None
    if target != "bf16":
        chunks = stream_rows(source.layout, 0, num_rows)
        largest = max(float(_decode(source, rows).abs().max()) for _, rows in chunks)
        scale = scale_for(target, largest)
    with open(out, "wb") as file:
        for _, rows in stream_rows(source.layout, 0, num_rows):
            file.write(encode_rows(target, _decode(source, rows), scale)[0].numpy())
        os.fsync(file.fileno())
    return scale


def _decode(source: TableSource, rows: torch.Tensor) -> torch.Tensor:
    """By torch's own number formats; `decode_rows_ref` shifts bits and is slower."""
    if source.codec.name == "bf16":
        return rows.view(torch.bfloat16).to(torch.float32)
    assert source.codec.name == "fp8"
    assert source.codec.scale is not None
    return rows.view(torch.float8_e4m3fn).to(torch.float32) * source.codec.scale


def _compare_with_torch(source: TableSource, target: str, pack: Path, plain: Path) -> int:
    scale = recode_with_torch(source, target, plain)
    build_pack(source, pack, codec=target)
    packed = open_pack(pack)
    assert packed.codec.scale == scale
    with open(plain, "rb") as file:
        for first_row, rows in stream_rows(packed.layout, 0, packed.layout.num_rows):
            if file.read(rows.numel()) != rows.numpy().tobytes():
                raise AssertionError(f"a row from {first_row} on differs from plain torch")
    return int(packed.layout.num_rows)


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
    sources=(
        "benchmarks/pack.py",
        "benchmarks/disk_files.py",
        "src/gramary/files/pack/*",
        "csrc/rows/recode.*",
        "csrc/rows/encode.hpp",
    ),
)


if __name__ == "__main__":
    main(BENCHMARK)
