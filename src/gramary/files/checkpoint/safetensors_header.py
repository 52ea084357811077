"""The headers of safetensors files: where each tensor lies, without reading any of them.

The package `safetensors` gives no offsets into the file, which reading rows in place needs. This
parser is as strict as that package's own, and never allocates or reads more than the header.

Source: the format as https://github.com/huggingface/safetensors specifies it: 8 bytes of header
length (little endian), a JSON object, then the tensors' bytes without holes or overlaps.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path
from typing import Any

from gramary.errors import CheckpointError
from gramary.files.checkpoint.strict_json import parse_object, show
from gramary.files.layout import RowFile
from gramary.model.foreign_files import HEAD_BYTES, recognise, recognise_path
from gramary.native.descriptors import open_file

MAX_HEADER_BYTES = 100_000_000
MAX_TENSOR_BYTES = 2**63 - 1

DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8,
    "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
_FIELDS = {"dtype", "shape", "data_offsets"}


@dataclasses.dataclass(frozen=True)
class TensorEntry:
    """One tensor of a safetensors file.

    Attributes:
        name: its name.
        dtype: as the format spells it ("BF16", "F8_E4M3", ...); one this module does not know is
            kept as it is.
        shape: its sizes.
        file: the file it lies in.
        offset: its first byte in the file.
        nbytes: its bytes; a truncated file may hold fewer.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: RowFile
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """One past its last byte in the file."""
        return self.offset + self.nbytes

    @property
    def is_truncated(self) -> bool:
        """Whether the file ends before the tensor does."""
        return self.end > self.file.size

    def describe(self) -> str:
        """Returns its dtype and shape as messages show them, such as `BF16 [758, 32]`."""
        dtype = self.dtype if self.dtype in DTYPE_BITS else show(self.dtype)
        return f"{dtype} {show(list(self.shape))}"

    def read(self) -> bytes:
        """Returns the bytes of a small tensor, such as a scale.

        Raises:
            CheckpointError: they cannot be read; the message names the file.
        """
        try:
            with open(self.file.path, "rb") as opened:
                opened.seek(self.offset)
                data = opened.read(self.nbytes)
                # Afterwards: a write moves the change time before it changes a byte.
                found = RowFile.from_stat(self.file.path, os.fstat(opened.fileno()))
        except OSError as error:
            raise CheckpointError(f"{self.file.path}: cannot be read: {error.strerror}") from error
        if found != self.file:
            raise CheckpointError(f"{self.file.path}: changed while it was read; try again")
        if len(data) != self.nbytes:
            raise CheckpointError(
                f"{self.file.path}: expected {self.nbytes} bytes of {show(self.name)} at byte "
                f"{self.offset}, got {len(data)}; download the file again"
            )
        return data


def read_header(path: str | os.PathLike[str]) -> tuple[TensorEntry, ...]:
    """Returns the tensors of a safetensors file, in the order they lie in it.

    A file that ends early is not refused here, so that the caller can say which tensor is cut off
    (`TensorEntry.is_truncated`); bytes after the last tensor are.

    Raises:
        CheckpointError: the file cannot be read or breaks the format; the message names the file
            and what was expected.
    """
    path = Path(path)
    file, text = _read_header_text(path)
    data_start = 8 + len(text)
    described = _parse_json(path, text)
    _check_metadata(path, described.pop("__metadata__", None))
    entries = [_parse_entry(file, data_start, *item) for item in described.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.end))
    end = data_start
    for entry in entries:
        if entry.offset != end:
            kind = "overlaps the tensor before it" if entry.offset < end else "follows a hole"
            raise _malformed(
                path, f"{show(entry.name)} {kind}: expected it at byte {end}, got {entry.offset}"
            )
        end = entry.end
    if end < file.size:
        raise _malformed(
            path,
            f"expected the file to end with its last tensor at byte {end}, got {file.size} bytes",
        )
    return tuple(entries)


def _malformed(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path}: no valid safetensors file: {problem}; download it again")


def _read_header_text(path: Path) -> tuple[RowFile, bytes]:
    """Returns the file's description and the bytes of its JSON header."""
    try:
        # Without O_NONBLOCK a named pipe of this name would block for ever.
        with (
            open_file(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor,
            open(descriptor.fileno(), "rb", closefd=False) as opened,
        ):
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path}: expected a regular file")
            num_bytes = _read_header_bytes(path, opened.read(HEAD_BYTES), status.st_size)
            opened.seek(8)
            text = opened.read(num_bytes)
    except OSError as error:
        found = recognise_path(path)
        problem = f"expected a safetensors file, found {found}" if found else error.strerror
        raise CheckpointError(f"{path}: cannot be read: {problem}") from error
    if len(text) != num_bytes:
        raise _malformed(path, f"expected a header of {num_bytes} bytes, got {len(text)}")
    return RowFile.from_stat(path, status), text


def _read_header_bytes(path: Path, head: bytes, file_bytes: int) -> int:
    """Returns the length of the header, once the file looks like one of the format."""
    num_bytes = int.from_bytes(head[:8], "little")
    room = min(MAX_HEADER_BYTES, file_bytes - 8)
    is_header = head[8:9] == b"{" and 2 <= num_bytes <= MAX_HEADER_BYTES
    if is_header and num_bytes > room:
        raise CheckpointError(
            f"{path}: is cut off after {file_bytes} bytes: expected a header of 2 to {room} bytes, "
            f"got {num_bytes}; its download did not end: download it again"
        )
    if not is_header and (found := recognise(head, file_bytes)) is not None:
        raise CheckpointError(f"{path}: expected a safetensors file, found {found}")
    if len(head) < 8:
        raise _malformed(path, f"expected at least 8 bytes, got {len(head)}")
    if not 2 <= num_bytes <= room:
        raise _malformed(path, f"expected a header of 2 to {room} bytes, got {num_bytes}")
    return num_bytes


def _parse_json(path: Path, text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise _malformed(path, "expected its header to start with '{'")
    try:
        return parse_object(text)
    except ValueError as error:
        raise _malformed(path, f"its header cannot be parsed: {error}") from error


def _check_metadata(path: Path, metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _malformed(path, "expected __metadata__ to map strings to strings")


def _parse_entry(file: RowFile, data_start: int, name: str, described: Any) -> TensorEntry:
    path = Path(file.path)
    if not isinstance(described, dict) or not set(described) >= _FIELDS:
        raise _malformed(path, f"expected dtype, shape and data_offsets of {show(name)}")
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    if not isinstance(dtype, str):
        raise _malformed(path, f"expected a string as dtype of {show(name)}")
    if not _is_sizes(shape):
        raise _malformed(path, f"expected a list of sizes as shape of {show(name)}")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _malformed(path, f"expected [begin, end] as data_offsets of {show(name)}")
    begin, end = offsets
    if _count_bytes(dtype, shape) not in (None, end - begin):
        raise _malformed(
            path, f"{show(name)}: {end - begin} bytes do not hold {show(dtype)} {show(shape)}"
        )
    return TensorEntry(name, dtype, tuple(shape), file, data_start + begin, end - begin)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size <= MAX_TENSOR_BYTES for size in value
    )


def _count_bytes(dtype: str, shape: list[int]) -> int | None:
    """Returns the bytes of a tensor, -1 if no file can hold it, None for an unknown dtype."""
    if dtype not in DTYPE_BITS:
        return None
    num_bits = 0 if 0 in shape else DTYPE_BITS[dtype]
    for size in shape:
        num_bits *= size
        if num_bits > 8 * MAX_TENSOR_BYTES:
            return -1
    return num_bits // 8 if num_bits % 8 == 0 else -1
