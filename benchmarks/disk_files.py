"""Tables in files for the disk benchmarks: fully written, so that no read is a hole."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks import harness
from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun, TableSource
from gramary.model.codecs import Codec, encode_rows
from gramary.model.hashing import HashSpec

ROW_DIM = 160
FP8 = Codec("fp8", ROW_DIM, 0.5)
CHUNK_BYTES = 32 << 20


def write_random_file(path: Path, num_bytes: int) -> None:
    """Writes random bytes past the page cache; `num_bytes` is a multiple of 4096."""
    rng = np.random.default_rng(0)
    buffer = mmap.mmap(-1, CHUNK_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
        for offset in range(0, num_bytes, CHUNK_BYTES):
            count = min(CHUNK_BYTES, num_bytes - offset)
            buffer[:count] = rng.bytes(count)
            os.pwrite(descriptor, memoryview(buffer)[:count], offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_finite_rows(path: Path, codec: Codec, num_bytes: int) -> None:
    """Writes normally distributed values in a codec without a scale of its own, or fp8 codes."""
    generator = torch.Generator().manual_seed(0)
    rows_at_once = CHUNK_BYTES // codec.row_bytes
    with open(path, "wb") as file:
        for _ in range(-(-num_bytes // (rows_at_once * codec.row_bytes))):
            values = torch.randn(rows_at_once, codec.row_dim, generator=generator)
            file.write(encode_rows(codec.name, values, codec.scale)[0].numpy())
        file.truncate(num_bytes)
        os.fsync(file.fileno())


def describe_table(path: Path, codec: Codec = FP8) -> TableSource:
    """Describes a file as the shards of a table of the real row width, 128 of them."""
    row_bytes = codec.row_bytes
    num_rows = path.stat().st_size // row_bytes
    spec = HashSpec(
        vocab_size=248320,
        eos_token_id=248044,
        ngram_size=3,
        heads_per_ngram=8,
        row_dim=ROW_DIM,
        # The primes above it spread over a few hundred numbers.
        ngram_vocab_size_base=num_rows // 16 - 1000,
        rows_multiple=128,
    )
    assert spec.num_rows <= num_rows
    file = RowFile.from_path(path)
    per_shard = -(-spec.num_rows // 128)
    runs = []
    for first in range(0, spec.num_rows, per_shard):
        count = min(per_shard, spec.num_rows - first)
        part = RowPart(0, first * row_bytes, row_bytes, 0, count, count * row_bytes, row_bytes)
        runs.append(RowRun(first, count, (part,)))
    layout = RowLayout((file,), row_bytes, tuple(runs))
    return TableSource(str(path), "checkpoint", spec, codec, layout, "0" * 32)


def drop_cache(*paths: str) -> None:
    """Lets go of the files' pages in the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def fill_cache(path: str) -> None:
    """Reads a file through the page cache, from its start to its end."""
    buffer = bytearray(CHUNK_BYTES)
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            pass


def byte_offsets(layout: RowLayout, row_ids: torch.Tensor) -> torch.Tensor:
    """Returns the byte at which each row begins, for layouts of one file and one part a row."""
    first_rows = torch.tensor([run.first_row for run in layout.runs])
    parts = [run.parts[0] for run in layout.runs]
    run = torch.searchsorted(first_rows, row_ids, right=True) - 1
    facts = torch.tensor([(p.offset, p.rows_per_block, p.block_bytes, p.stride) for p in parts])
    offset, per_block, block_bytes, stride = facts[run].unbind(1)
    local = row_ids - first_rows[run]
    return offset + local // per_block * block_bytes + local % per_block * stride


def distinct_blocks(layout: RowLayout, row_ids: torch.Tensor) -> torch.Tensor:
    """Returns the offsets of the 4 KiB blocks that rows touch, ascending."""
    first = byte_offsets(layout, row_ids)
    blocks = torch.cat([first // 4096, (first + layout.row_bytes - 1) // 4096])
    return torch.unique(blocks) * 4096


def main(benchmark: harness.Benchmark) -> None:
    """Runs a benchmark of files, with options for their size and place beside the harness's.

    Args:
        benchmark: its `build` takes `table_gib` and `folder` too.
    """
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--table-gib", type=float, help="size of the table")
    parser.add_argument("--folder", help="where the files are written")
    options, rest = parser.parse_known_args()
    build = functools.partial(benchmark.build, **vars(options))
    harness.main(dataclasses.replace(benchmark, build=build), rest, sys.argv[1:])
