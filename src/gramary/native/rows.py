"""Native work on encoded rows in memory: gather, decode, both, and both behind the hash.

Everything lies on the CPU. Large calls run on all threads of the native pool, small ones on the
calling thread alone; any number of threads may call. Outputs are bfloat16, float16, float32, or
uint8 for the rows as they are encoded. Every instruction set gives the same bytes: one rounding,
to nearest even, a NaN stays one.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch

from gramary.flat_batch import FlatBatch
from gramary.native import _core
from gramary.native.hash import BatchFault, NgramHasher, fault_of

RowCodec = _core.RowCodec
RowCounter = _core.RowCounter

_ENCODINGS = {"bf16": 0, "fp16": 1, "fp32": 2, "fp8": 3, "nvfp4": 4}
# The core's numbers of what rows are decoded to.
OUTPUTS = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2, torch.uint8: 3}


@dataclasses.dataclass(frozen=True)
class RowExtent:
    """A run of encoded rows, numbered as in their table, and what they are read from.

    Attributes:
        address: where the first row lies, as who reads it sees it; of rows on disk, where the core
            has the reader of their files. What lies there must outlive every call.
        first_row: the table's number of the first row.
        num_rows: rows that follow each other from there.
        counter_address: where the core counts the rows that it reads from here
            (`RowCounter.address`); it must outlive every call as well. 0 counts nowhere.
    """

    address: int
    first_row: int
    num_rows: int
    counter_address: int = 0

    @property
    def end_row(self) -> int:
        """One past the last row."""
        return self.first_row + self.num_rows


NO_ROWS = RowExtent(address=0, first_row=0, num_rows=0)
ANY_ROW_ID = -1


def gather(
    row_ids: torch.Tensor,
    extent: RowExtent,
    row_bytes: int,
    out: torch.Tensor,
    *,
    is_sent_on: bool = False,
) -> None:
    """Copies rows by id; ids outside the extent get rows of zero bytes.

    Args:
        row_ids: int64 [n], contiguous.
        extent: where rows lie.
        row_bytes: bytes of one row.
        out: uint8 [n, row_bytes], contiguous.
        is_sent_on: whether a device reads `out` next; it is then kept out of the CPU's caches.
    """
    # To the core, bytes as they are have any one-byte encoding.
    lookup("fp8", row_bytes, 1.0, row_ids, extent, ANY_ROW_ID, out, is_sent_on=is_sent_on)


def lookup(
    codec_name: str,
    row_dim: int,
    scale: float | None,
    row_ids: torch.Tensor,
    extent: RowExtent,
    num_table_rows: int,
    out: torch.Tensor,
    *,
    is_sent_on: bool = False,
) -> int | None:
    """Writes decoded rows by id; -1 and ids outside the extent give zero rows and read nothing.

    Args:
        codec_name: "bf16", "fp16", "fp32", "fp8" or "nvfp4".
        row_dim: values in a row.
        scale: the table's scale; None for plain codecs.
        row_ids: int64 [n], contiguous.
        extent: where rows lie.
        num_table_rows: rows of the whole table; ids are -1 to num_table_rows-1. ANY_ROW_ID
            takes every id.
        out: [n, row_dim], or uint8 [n, row_bytes], contiguous.
        is_sent_on: as for `gather`.

    Returns:
        None, or the index of the first id outside the table; `out` is then undefined.
    """
    codec = row_codec(codec_name, row_dim, scale)
    require_contiguous(row_ids, torch.int64)
    output = _check_out(codec, row_dim, row_ids.numel(), out)
    wrong = codec.lookup(
        extent, num_table_rows, row_ids.data_ptr(), row_ids.numel(), output, out.data_ptr(),
        is_sent_on,
    )  # fmt: skip
    return None if wrong < 0 else wrong


def embed(
    hasher: NgramHasher,
    codec_name: str,
    row_dim: int,
    scale: float | None,
    batch: FlatBatch,
    extent: RowExtent,
    out: torch.Tensor,
) -> BatchFault | None:
    """Writes the decoded rows of every token's n-grams: hash, gather and decode in one pass.

    Args:
        hasher: the table's hash.
        codec_name: "bf16", "fp16", "fp32", "fp8" or "nvfp4".
        row_dim: values in a row.
        scale: the table's scale; None for plain codecs.
        batch: on the CPU.
        extent: where rows lie; other rows are zero and not read.
        out: [T, num_heads*row_dim], or uint8 [T, num_heads*row_bytes], contiguous; zero for
            padding.

    Returns:
        None, or the first wrong number of the batch; `out` is then undefined.
    """
    codec = row_codec(codec_name, row_dim, scale)
    output = _check_out(codec, row_dim, batch.token_ids.numel() * hasher.num_heads, out)
    code = codec.embed(hasher.core, extent, *batch.addresses(), output, out.data_ptr())
    return fault_of(code) if code else None


def decode(
    codec_name: str,
    row_dim: int,
    scale: float | None,
    encoded: torch.Tensor,
    out: torch.Tensor,
    positions: torch.Tensor | None = None,
) -> None:
    """Writes decoded rows.

    Args:
        codec_name: "bf16", "fp16", "fp32", "fp8" or "nvfp4".
        row_dim: values in a row.
        scale: the table's scale; None for plain codecs.
        encoded: uint8 [n, row_bytes], contiguous.
        out: [n, row_dim], or uint8 [n, row_bytes], contiguous; [m, ...] with positions.
        positions: int64 [n], contiguous: row i of `encoded` goes to row positions[i] of `out`.
            All differ and lie in 0 to m-1; None is 0 to n-1.
    """
    codec = row_codec(codec_name, row_dim, scale)
    require_contiguous(encoded, torch.uint8)
    count = encoded.numel() // codec.row_bytes
    output = _check_out(codec, row_dim, count if positions is None else None, out)
    if positions is not None:
        require_contiguous(positions, torch.int64)
        if positions.numel() != count:
            raise AssertionError((positions.shape, encoded.shape))
    address = 0 if positions is None else positions.data_ptr()
    codec.decode(encoded.data_ptr(), count, output, address, out.data_ptr())


def find_places(
    row_ids: torch.Tensor, first_row: int, end_row: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (places int64 [k], ids int64 [k]) of the ids first_row .. end_row - 1, in order.

    Args:
        row_ids: int64 [n], contiguous.
        first_row: least id looked for.
        end_row: one past the largest.
    """
    require_contiguous(row_ids, torch.int64)
    found = torch.empty(2, row_ids.numel(), dtype=torch.int64, device="cpu")
    places, ids = found.unbind()
    count = _core.find_places(row_ids.data_ptr(), row_ids.numel(), first_row, end_row,
                              places.data_ptr(), ids.data_ptr())  # fmt: skip
    return places[:count], ids[:count]


def first_wrong_row_id(row_ids: torch.Tensor, num_table_rows: int) -> int | None:
    """Returns the index of the first id int64 [n] that is neither -1 nor a row, None for none."""
    require_contiguous(row_ids, torch.int64)
    wrong = _core.first_wrong_row_id(row_ids.data_ptr(), row_ids.numel(), num_table_rows)
    return None if wrong < 0 else wrong


@functools.lru_cache(maxsize=64)
def row_codec(name: str, row_dim: int, scale: float | None) -> RowCodec:
    """Returns the core's codec; one for each name, width and scale."""
    is_scaled = name in ("fp8", "nvfp4")
    if row_dim < 1 or is_scaled != (scale is not None and math.isfinite(scale)):
        raise AssertionError((name, row_dim, scale))
    if name == "nvfp4" and row_dim % 16:
        raise AssertionError((name, row_dim))
    return _core.RowCodec(_ENCODINGS[name], row_dim, 1.0 if scale is None else scale)


def require_contiguous(tensor: torch.Tensor, *dtypes: torch.dtype) -> None:
    """Raises AssertionError unless a tensor is contiguous, on the CPU and of one of the dtypes.

    Only a bug of ours gets here: what callers pass is checked at the operations' boundary.
    """
    is_readable = tensor.is_cpu and tensor.is_contiguous()
    if not is_readable or tensor.dtype not in dtypes:
        raise AssertionError((tensor.dtype, tensor.device, tensor.shape, tensor.stride()))


def _check_out(codec: RowCodec, row_dim: int, count: int | None, out: torch.Tensor) -> int:
    """Returns the core's number for the dtype of a result buffer of so many rows; None is any."""
    width = codec.row_bytes if out.dtype == torch.uint8 else row_dim
    size = out.numel() // width * width if count is None else count * width
    if not out.is_cpu or not out.is_contiguous() or out.numel() != size:
        raise AssertionError((out.dtype, out.device, out.shape, out.stride(), count, row_dim))
    return OUTPUTS[out.dtype]


__all__ = [
    "ANY_ROW_ID",
    "NO_ROWS",
    "OUTPUTS",
    "RowCodec",
    "RowCounter",
    "RowExtent",
    "decode",
    "embed",
    "find_places",
    "first_wrong_row_id",
    "gather",
    "lookup",
    "require_contiguous",
    "row_codec",
]
