"""The header of a pack: what it holds, as bytes and back. docs/format.md is the specification."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from typing import Any

import xxhash

from gramary.errors import ChecksumError, GramaryError, HashMismatchError, PackError
from gramary.files.checkpoint.strict_json import parse_object, show
from gramary.files.hash_members import MEMBER_NAMES, members_of, spec_of
from gramary.files.pack.geometry import FIXED_HEADER_BYTES, MAX_HEADER_READ, PackGeometry
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.native.blocks import CHECKSUM_BYTES, BlockShape

VERSION = 1
MAGIC = b"GRAMPACK"
PARTIAL_MAGIC = b"GRAMPART"

_FIXED = struct.Struct("<8sIIQQIIII")
_FIXED_NAMES = (
    "magic",
    "version",
    "header_bytes",
    "file_bytes",
    "num_rows",
    "row_bytes",
    "block_bytes",
    "rows_per_block",
    "metadata_bytes",
)
_MODEL_ID = re.compile("[0-9a-f]{32}")
_DERIVED_CONSTANTS = ("multipliers", "sizes", "offsets")


@dataclasses.dataclass(frozen=True)
class SourceIdentity:
    """The table that a pack's rows were taken from.

    Attributes:
        model_id: its identity (`TableSource.model_id`).
        codec: name of its codec.
        scale: its table-wide scale, or None.
    """

    model_id: str
    codec: str
    scale: float | None


@dataclasses.dataclass(frozen=True)
class PackHeader:
    """All that a pack says about its rows.

    Attributes:
        spec: geometry and hash constants of the table.
        codec: how its rows are encoded.
        source: where they came from.
        writer: the program that wrote the file.
    """

    spec: HashSpec
    codec: Codec
    source: SourceIdentity
    writer: str

    @property
    def model_id(self) -> str:
        """Identity of the table: the source's where the rows are the source's own."""
        if (self.codec.name, self.codec.scale) == (self.source.codec, self.source.scale):
            return self.source.model_id
        recoded = f"{self.source.model_id} {self.codec.name} {self.codec.scale!r}"
        return xxhash.xxh3_128_hexdigest(recoded.encode())

    @property
    def metadata(self) -> bytes:
        """The metadata as it stands in the file."""
        members = {
            "codec": dataclasses.asdict(self.codec),
            "hash": members_of(self.spec),
            "source": dataclasses.asdict(self.source),
            "writer": self.writer,
        }
        return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()

    @property
    def geometry(self) -> PackGeometry:
        """Where everything lies in the file."""
        return PackGeometry(self.spec.num_rows, self.codec.row_bytes, len(self.metadata))

    @property
    def block_shape(self) -> BlockShape:
        """What the blocks look like and how their checksums are seeded."""
        geometry = self.geometry
        return BlockShape(
            geometry.row_bytes,
            geometry.rows_per_block,
            geometry.block_bytes,
            xxhash.xxh64_intdigest(self.metadata),
        )

    def to_bytes(self, *, partial: bool = False) -> bytes:
        """Returns the whole header, `geometry.header_bytes` long.

        Args:
            partial: whether the blocks are still being written.
        """
        geometry, metadata = self.geometry, self.metadata
        fixed = _pack_fixed(PARTIAL_MAGIC if partial else MAGIC, geometry)
        body = (fixed + metadata).ljust(geometry.header_bytes - CHECKSUM_BYTES, b"\0")
        return body + xxhash.xxh64_intdigest(body).to_bytes(CHECKSUM_BYTES, "little")


def read_header_bytes(fixed: bytes, num_available: int, *, partial: bool = False) -> int:
    """Returns the length of a header from its first bytes.

    Args:
        fixed: the first `FIXED_HEADER_BYTES` of the file, or all of a shorter one.
        num_available: bytes of the file.
        partial: whether a file that is being built is wanted.

    Raises:
        PackError: it is no pack, or one of another version or truncated within the header.
    """
    magic = fixed[:8]
    if magic != (PARTIAL_MAGIC if partial else MAGIC):
        if magic == PARTIAL_MAGIC:
            raise PackError("it is a pack whose building did not end; run `gramary pack` again")
        raise PackError(
            f"it is no pack (for a checkpoint, give the model's folder): expected it to begin with "
            f"{MAGIC!r}, got {magic!r}"
        )
    if len(fixed) < FIXED_HEADER_BYTES:
        raise PackError(f"it is truncated: {num_available} bytes are less than a header")
    _, version, header_bytes, *_ = _FIXED.unpack(fixed)
    if version != VERSION:
        raise PackError(f"expected a pack of version {VERSION}, got version {version}")
    if not FIXED_HEADER_BYTES < header_bytes <= MAX_HEADER_READ:
        raise PackError(f"its header claims {header_bytes} bytes")
    if header_bytes > num_available:
        raise PackError(f"it is truncated: {num_available} bytes, its header alone {header_bytes}")
    return int(header_bytes)


def parse_header(data: bytes) -> PackHeader:
    """Returns the header that `data` is, every field checked against its rule.

    Args:
        data: as many bytes as `read_header_bytes` said.

    Raises:
        ChecksumError: its checksum differs.
        HashMismatchError: its hash constants are not those that its specification gives.
        PackError: a field or the metadata breaks a rule.
    """
    body, stored = data[:-CHECKSUM_BYTES], int.from_bytes(data[-CHECKSUM_BYTES:], "little")
    computed = xxhash.xxh64_intdigest(body)
    if stored != computed:
        raise ChecksumError(
            f"its header was altered: stored checksum {stored:016x}, computed {computed:016x}"
        )
    fixed = body[:FIXED_HEADER_BYTES]
    metadata_bytes = _FIXED.unpack(fixed)[-1]
    metadata = body[FIXED_HEADER_BYTES : FIXED_HEADER_BYTES + metadata_bytes]
    header = _parse_metadata(metadata)
    if header.metadata != metadata:
        raise PackError("its metadata is not in the one right form (docs/format.md)")
    expected = _pack_fixed(fixed[:8], header.geometry)
    if fixed != expected:
        pairs = zip(_FIXED_NAMES, _FIXED.unpack(expected), _FIXED.unpack(fixed), strict=True)
        name, wanted, found = next(pair for pair in pairs if pair[1] != pair[2])
        raise PackError(f"its header's {name}: expected {wanted}, got {found}")
    if any(body[FIXED_HEADER_BYTES + metadata_bytes :]):
        raise PackError("its header has bytes that are not zero after the metadata")
    return header


def _pack_fixed(magic: bytes, geometry: PackGeometry) -> bytes:
    return _FIXED.pack(
        magic,
        VERSION,
        geometry.header_bytes,
        geometry.file_bytes,
        geometry.num_rows,
        geometry.row_bytes,
        geometry.block_bytes,
        geometry.rows_per_block,
        geometry.metadata_bytes,
    )


def _parse_metadata(metadata: bytes) -> PackHeader:
    try:
        members = parse_object(metadata)
    except ValueError as error:
        raise PackError(f"its metadata is wrong: {error}") from error
    _check_members("metadata", members, ("codec", "hash", "source", "writer"))
    codec = _check_members("codec", members["codec"], ("name", "row_dim", "scale"))
    source = _check_members("source", members["source"], ("codec", "model_id", "scale"))
    _check_text(members["writer"], source["model_id"])
    spec = _parse_spec(members["hash"])
    try:
        # Codec checks what it is given; the source's codec has the same rules.
        Codec(source["codec"], spec.row_dim, source["scale"])
        header = PackHeader(spec, Codec(**codec), SourceIdentity(**source), members["writer"])
    except (GramaryError, TypeError) as error:
        raise PackError(f"its metadata is wrong: {error}") from error
    if header.codec.row_dim != spec.row_dim:
        raise PackError(
            f"its codec has rows of {header.codec.row_dim} values, its hash specification of "
            f"{spec.row_dim}"
        )
    return header


def _check_text(writer: Any, model_id: Any) -> None:
    """Both are shown to people, and the identity goes into the names of files."""
    if not isinstance(writer, str) or not writer.isprintable():
        raise PackError(f"its metadata is wrong: writer must be printable text, got {show(writer)}")
    if not isinstance(model_id, str) or not _MODEL_ID.fullmatch(model_id):
        raise PackError(
            f"its metadata is wrong: source.model_id must be 32 hexadecimal digits, got "
            f"{show(model_id)}"
        )


def _parse_spec(members: Any) -> HashSpec:
    _check_members("hash", members, MEMBER_NAMES)
    try:
        spec = spec_of(members)
    except GramaryError as error:
        raise PackError(f"its hash specification is wrong: {error}") from error
    for name in _DERIVED_CONSTANTS:
        rebuilt = list(getattr(spec, name))
        if members[name] != rebuilt or not _are_ints(members[name]):
            raise HashMismatchError(
                f"its {name} differ from those of its hash specification: stored "
                f"{show(members[name])}, rebuilt {show(rebuilt)}"
            )
    return spec


def _are_ints(values: Any) -> bool:
    # 3.0 == 3 and True == 1 in Python.
    return isinstance(values, list) and all(type(value) is int for value in values)


def _check_members(where: str, members: Any, names: Any) -> dict[str, Any]:
    if not isinstance(members, dict) or sorted(members) != sorted(names):
        raise PackError(
            f"its metadata is wrong: {where} must have the members {', '.join(sorted(names))}, "
            f"got {show(members)}"
        )
    return members
