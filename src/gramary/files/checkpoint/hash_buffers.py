"""The hash constants that a checkpoint ships, against those rebuilt from its configuration."""

from __future__ import annotations

import struct

from gramary.errors import HashMismatchError
from gramary.files.checkpoint.strict_json import show
from gramary.files.checkpoint.table_tensors import HASH_BUFFERS, TableTensors
from gramary.model.hashing import HashSpec


def check_hash_buffers(spec: HashSpec, table: TableTensors) -> None:
    """Compares the three buffers of a table with the constants of `spec`.

    They are the only proof that the configuration (whose `seed` is often absent) is the one the
    table was trained with, so a missing buffer is refused too.

    Raises:
        HashMismatchError: a buffer is missing, misshapen or holds other values; both are shown.
    """
    rebuilt = dict(zip(HASH_BUFFERS, (spec.multipliers, spec.sizes, spec.offsets), strict=True))
    for name, expected in rebuilt.items():
        entry = table.buffers.get(name)
        if entry is None:
            raise HashMismatchError(
                f"{table.prefix}{name}: expected {len(expected)} int64 values to compare with the "
                f"configuration, found no such tensor; take it from the original checkpoint"
            )
        where = f"{entry.file.path}: {show(entry.name)}"
        if entry.dtype != "I64" or entry.shape != (len(expected),):
            raise HashMismatchError(
                f"{where}: expected I64 [{len(expected)}], found {entry.describe()}"
            )
        stored = struct.unpack(f"<{len(expected)}q", entry.read())
        if stored != expected:
            first = next(i for i in range(len(expected)) if stored[i] != expected[i])
            raise HashMismatchError(
                f"{where}: element {first} is {stored[first]}, but config.json gives "
                f"{expected[first]} (stored {list(stored)}, rebuilt {list(expected)}); the files "
                f"and the configuration (seed {spec.seed}, ngram_vocab_size_base "
                f"{spec.ngram_vocab_size_base}, vocab_size {spec.vocab_size}) are of different "
                f"models"
            )
