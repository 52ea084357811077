"""A name for what a table holds, the same wherever its files are.

Hashing all bytes of a table would read tens of gigabytes at every start. The identity covers the
hash constants, the codec with its scale, and a sample of rows spread over the whole table, so it
tells models and their fine-tunings apart, not two tables that differ in a few rows. A pack's own
checksums cover every byte.
"""

from __future__ import annotations

import dataclasses
import json

import torch
import xxhash

from gramary.files.hash_members import members_of
from gramary.files.layout import RowLayout
from gramary.files.stream import RowReader
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec

NUM_SAMPLED_ROWS = 256


def identify_table(spec: HashSpec, codec: Codec, layout: RowLayout) -> str:
    """Returns 32 hexadecimal digits that depend on the table's content alone.

    Raises:
        RowReadError: a sampled row cannot be read.
    """
    described = {
        "spec": members_of(spec),
        "codec": dataclasses.asdict(codec),
        "num_rows": layout.num_rows,
    }
    digest = xxhash.xxh3_128(json.dumps(described, sort_keys=True).encode())
    row = torch.empty(1, layout.row_bytes, dtype=torch.uint8, device="cpu")
    with RowReader(layout) as reader:
        for row_id in sample_row_ids(layout.num_rows):
            reader.read(row_id, row)
            digest.update(row.numpy().tobytes())
    return digest.hexdigest()


def sample_row_ids(num_rows: int) -> list[int]:
    """Returns the sampled rows: the first, the last and equally many between them."""
    count = min(NUM_SAMPLED_ROWS, num_rows)
    return [i * (num_rows - 1) // max(1, count - 1) for i in range(count)]
