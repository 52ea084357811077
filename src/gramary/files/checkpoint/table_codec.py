"""The codec of a table, from the dtypes of its own tensors and the scales beside them.

The model's quantisation settings are never looked at: an fp8 table may sit inside an nvfp4 model.
"""

from __future__ import annotations

import math
import struct

from gramary.errors import ScaleError, ShardError
from gramary.files.checkpoint.safetensors_header import TensorEntry
from gramary.files.checkpoint.strict_json import show
from gramary.files.checkpoint.table_tensors import TableTensors
from gramary.model.codecs import NVFP4_BLOCK, Codec

CODEC_OF_DTYPE = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F8_E4M3": "fp8", "U8": "nvfp4"}
SCALE_OF_CODEC = {"fp8": "weight_scale", "nvfp4": "weight_scale_2"}


def read_codec(table: TableTensors, row_dim: int) -> Codec:
    """Returns the codec of a table's rows, with its scale.

    Args:
        table: a table with at least one shard.
        row_dim: values in a row, from the configuration.

    Raises:
        ShardError: shards have different dtypes, or one that no codec has, or nvfp4 does not
            divide the row.
        ScaleError: a scale is missing, superfluous or misshapen, or not finite and above zero.
    """
    name = CODEC_OF_DTYPE[_common_dtype(table)]
    if name == "nvfp4" and row_dim % NVFP4_BLOCK:
        raise ShardError(
            f"{table.prefix}ngram_embedding: U8 shards are nvfp4, whose rows must be a multiple of "
            f"{NVFP4_BLOCK} wide; the configuration gives {row_dim}"
        )
    wanted = SCALE_OF_CODEC.get(name)
    for suffix, entry in table.scales.items():
        if suffix != wanted:
            raise ScaleError(
                f"{entry.file.path}: {show(entry.name)} does not belong to {name} rows"
            )
    if name != "nvfp4" and table.block_scales:
        entry = next(iter(table.block_scales.values()))
        raise ScaleError(f"{entry.file.path}: {show(entry.name)} does not belong to {name} rows")
    if wanted is None:
        return Codec(name, row_dim)
    if wanted not in table.scales:
        raise ScaleError(
            f"{table.prefix}ngram_embedding.{wanted}: missing; {name} rows cannot be decoded "
            f"without it, and no value is assumed; take it from the original checkpoint"
        )
    return Codec(name, row_dim, _read_scale(table.scales[wanted]))


def _common_dtype(table: TableTensors) -> str:
    first = table.shards[min(table.shards)]
    for number in sorted(table.shards):
        shard = table.shards[number]
        if shard.dtype not in CODEC_OF_DTYPE:
            raise ShardError(
                f"{shard.file.path}: {show(shard.name)} is {show(shard.dtype)}; expected one of "
                f"{', '.join(CODEC_OF_DTYPE)}"
            )
        if shard.dtype != first.dtype:
            raise ShardError(
                f"{shard.file.path}: {show(shard.name)} is {shard.dtype}; expected {first.dtype} "
                f"like {show(first.name)}"
            )
    return first.dtype


def _read_scale(entry: TensorEntry) -> float:
    """Returns the value of a scalar BF16 or F32 tensor."""
    where = f"{entry.file.path}: {show(entry.name)}"
    if entry.dtype not in ("BF16", "F32") or entry.shape not in ((), (1,)):
        raise ScaleError(f"{where}: expected BF16 or F32 [] or [1], found {entry.describe()}")
    data = entry.read()
    # A bfloat16 is the upper half of the float32 of the same value.
    value: float = struct.unpack("<f", data if entry.dtype == "F32" else b"\0\0" + data)[0]
    if not math.isfinite(value) or value <= 0:
        raise ScaleError(f"{where}: expected a finite scale above zero, found {value}")
    return value
