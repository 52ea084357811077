"""The rows of a table's shards, checked against the geometry and laid end to end.

The number of shards is that of the files, not of `split_ngram_parts`, which may be absent or a
class's default: every shard has `ceil(rows / count)` rows, and the last may be shorter.
"""

from __future__ import annotations

import itertools
from collections import Counter

from gramary.errors import CheckpointError, ScaleError, ShardError
from gramary.files.checkpoint.safetensors_header import TensorEntry
from gramary.files.checkpoint.strict_json import show
from gramary.files.checkpoint.table_tensors import TableTensors
from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun
from gramary.model.codecs import NVFP4_BLOCK, Codec


def lay_out_shards(table: TableTensors, codec: Codec, num_rows: int) -> RowLayout:
    """Returns where each of the table's `num_rows` rows lies.

    Raises:
        ShardError: a shard is missing, superfluous, misshapen or cut off.
        ScaleError: the block scales of an nvfp4 shard are missing, superfluous, misshapen or cut
            off.
    """
    files: dict[RowFile, int] = {}
    runs: list[RowRun] = []
    first_row = 0
    for number, rows in enumerate(_rows_of_shards(table, num_rows)):
        parts: list[RowPart] = []
        for entry in _check_shard(table, codec, number, rows):
            index = files.setdefault(entry.file, len(files))
            width = entry.nbytes // rows
            column = sum(part.width for part in parts)
            parts.append(RowPart(index, entry.offset, width, column, rows, rows * width, width))
        runs.append(RowRun(first_row, rows, tuple(parts)))
        first_row += rows
    return RowLayout(tuple(files), codec.row_bytes, tuple(runs))


def _rows_of_shards(table: TableTensors, num_rows: int) -> list[int]:
    """Returns the rows of each shard in order, having found every number there exactly once."""
    shards = dict(sorted(table.shards.items()))
    for shard in shards.values():
        if len(shard.shape) != 2 or shard.shape[0] < 1:
            raise _misshapen(ShardError, shard, "at least one row")
    total = sum(shard.shape[0] for shard in shards.values())
    summary = f"the configuration gives {num_rows} rows, the {len(shards)} shards hold {total}"
    # Most shards are right, so the size that most have tells how many there should be.
    typical = Counter(shard.shape[0] for shard in shards.values()).most_common(1)[0][0]
    count = -(-num_rows // typical)
    # Stops after a few: a hostile file can ask for any number of shards.
    missing = list(itertools.islice((n for n in range(count) if n not in shards), 4))
    if missing:
        names = ", ".join(table.shard_name(number) for number in missing[:3])
        more = " and more" if len(missing) > 3 else ""
        raise ShardError(f"{names}{more}: missing ({summary}); download the model's files again")
    for number, shard in shards.items():
        if number >= count:
            raise ShardError(f"{shard.file.path}: {show(shard.name)} is one too many ({summary})")
    expected = -(-num_rows // count)
    rows_of_shards = [min(expected, num_rows - number * expected) for number in range(count)]
    for number, rows in enumerate(rows_of_shards):
        if shards[number].shape[0] != rows:
            raise _misshapen(ShardError, shards[number], f"{rows} rows ({summary})")
    return rows_of_shards


def _check_shard(
    table: TableTensors, codec: Codec, number: int, rows: int
) -> tuple[TensorEntry, ...]:
    """Returns the tensors that make up the rows of a shard, the first columns first."""
    weight = table.shards[number]
    if codec.name != "nvfp4":
        _check_tensor(ShardError, weight, weight.dtype, (rows, codec.row_dim))
        return (weight,)
    _check_tensor(ShardError, weight, "U8", (rows, codec.row_dim // 2))
    block_scales = table.block_scales.get(number)
    if block_scales is None:
        raise ScaleError(
            f"{table.shard_name(number, 'weight_scale')}: missing; nvfp4 rows cannot be decoded "
            f"without their block scales; download the model's files again"
        )
    _check_tensor(ScaleError, block_scales, "F8_E4M3", (rows, codec.row_dim // NVFP4_BLOCK))
    return weight, block_scales


def _check_tensor(
    error: type[CheckpointError], entry: TensorEntry, dtype: str, shape: tuple[int, int]
) -> None:
    if entry.dtype != dtype or entry.shape != shape:
        raise _misshapen(error, entry, f"{dtype} {list(shape)}")
    if entry.is_truncated:
        raise error(
            f"{entry.file.path}: {show(entry.name)} is cut off: it ends at byte {entry.end}, the "
            f"file at {entry.file.size}; download it again"
        )


def _misshapen(error: type[CheckpointError], entry: TensorEntry, expected: str) -> CheckpointError:
    return error(
        f"{entry.file.path}: {show(entry.name)} is {entry.describe()}; expected {expected}"
    )
