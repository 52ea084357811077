"""Headers: what a reader refuses, one case each, and that no bytes make it crash or lie."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
import xxhash
from files.pack.conftest import make_spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gramary.errors import ArgumentError, ChecksumError, GramaryError, HashMismatchError, PackError
from gramary.files.pack import PackHeader, SourceIdentity, build_pack, open_pack
from gramary.files.pack.geometry import PackGeometry
from gramary.files.pack.header import parse_header, read_header_bytes
from gramary.model.codecs import Codec

HEADER = PackHeader(
    make_spec(row_dim=160),
    Codec("fp8", 160, 0.125),
    SourceIdentity("0" * 32, "bf16", None),
    "a test",
)


def seal(body: bytes) -> bytes:
    """A header of these bytes with the checksum that makes them look right."""
    return body + xxhash.xxh64_intdigest(body).to_bytes(8, "little")


def with_metadata(change) -> bytes:
    """The header's bytes with other metadata and everything else made to fit."""
    members = json.loads(HEADER.metadata)
    changed = change(members)
    text = changed if isinstance(changed, bytes) else None
    if text is None:
        text = json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    data = bytearray(HEADER.to_bytes()[:48] + text)
    data[44:48] = len(text).to_bytes(4, "little")
    return seal(bytes(data).ljust(HEADER.geometry.header_bytes - 8, b"\0"))


def with_text(member: str | None, name: str, text: object):
    """A header with this text in the metadata, or in a member of it."""
    return lambda: with_metadata(
        lambda m: (m[member] if member else m).update({name: text}) and None
    )


def with_field(offset: int, size: int, value: int) -> bytes:
    data = bytearray(HEADER.to_bytes()[:-8])
    data[offset : offset + size] = value.to_bytes(size, "little")
    return seal(bytes(data))


def test_a_header_reads_back() -> None:
    data = HEADER.to_bytes()
    assert len(data) == read_header_bytes(data[:48], len(data)) == HEADER.geometry.header_bytes
    assert parse_header(data) == HEADER
    assert parse_header(HEADER.to_bytes(partial=True)) == HEADER


def test_the_bytes_are_those_of_the_specification() -> None:
    """The fields at the offsets of docs/format.md, by hand."""
    data, metadata = HEADER.to_bytes(), HEADER.metadata
    num_rows = HEADER.spec.num_rows

    def number(offset: int, size: int) -> int:
        return int.from_bytes(data[offset : offset + size], "little")

    assert data[:8] == b"GRAMPACK"
    assert [number(8, 4), number(12, 4)] == [1, 4096]
    assert number(16, 8) == 4096 + -(-num_rows // 25) * 4096 == HEADER.geometry.file_bytes
    assert [number(24, 8), number(32, 4), number(36, 4)] == [num_rows, 160, 4096]
    assert [number(40, 4), number(44, 4)] == [25, len(metadata)]
    assert data[48 : 48 + len(metadata)] == metadata
    assert not any(data[48 + len(metadata) : -8])
    assert number(len(data) - 8, 8) == xxhash.xxh64_intdigest(data[:-8])
    assert json.loads(metadata)["codec"] == {"name": "fp8", "row_dim": 160, "scale": 0.125}
    assert HEADER.block_shape.checksum_seed == xxhash.xxh64_intdigest(metadata)


@pytest.mark.parametrize(
    ("row_bytes", "block_bytes", "rows_per_block"),
    [
        (1, 4096, 4088),
        (90, 4096, 45),
        (160, 4096, 25),
        (320, 4096, 12),
        (4088, 4096, 1),
        (4089, 8192, 2),
        (8184, 8192, 1),
        (8185, 16384, 2),
        (1 << 22, 1 << 23, 1),
    ],
)
def test_geometry(row_bytes: int, block_bytes: int, rows_per_block: int) -> None:
    geometry = PackGeometry(1000, row_bytes, 700)
    assert (geometry.block_bytes, geometry.rows_per_block) == (block_bytes, rows_per_block)
    assert geometry.header_bytes % block_bytes == 0
    blocks = -(-1000 // rows_per_block)
    assert geometry.file_bytes == geometry.header_bytes + blocks * block_bytes


@pytest.mark.parametrize("values", [(0, 1, 2), (1, 0, 2), (1, 1, 1), (1 << 48, 1, 2)])
def test_geometry_refuses(values) -> None:
    with pytest.raises(ArgumentError):
        PackGeometry(*values)


REFUSALS = [
    ("magic", lambda: b"safetens" + HEADER.to_bytes()[8:], PackError, "it is no pack"),
    ("empty", lambda: b"", PackError, "it is no pack"),
    ("unfinished", lambda: HEADER.to_bytes(partial=True), PackError, "run `gramary pack` again"),
    ("short", lambda: HEADER.to_bytes()[:40], PackError, "truncated: 40 bytes"),
    ("cut", lambda: HEADER.to_bytes()[:4000], PackError, "truncated: 4000 bytes"),
    ("version", lambda: with_field(8, 4, 2), PackError, "expected a pack of version 1, got"),
    ("header_bytes", lambda: with_field(12, 4, 2**32 - 1), PackError, "claims 4294967295"),
    ("no header", lambda: with_field(12, 4, 48), PackError, "claims 48"),
    ("file_bytes", lambda: with_field(16, 8, 2**63), PackError, "file_bytes: expected"),
    ("num_rows", lambda: with_field(24, 8, 2**60), PackError, "num_rows: expected"),
    ("row_bytes", lambda: with_field(32, 4, 0), PackError, "row_bytes: expected 160, got 0"),
    ("block_bytes", lambda: with_field(36, 4, 0), PackError, "block_bytes: expected 4096, got 0"),
    ("rows_per_block", lambda: with_field(40, 4, 24), PackError, "expected 25, got 24"),
    ("metadata_bytes", lambda: with_field(44, 4, 2**32 - 1), PackError, "metadata is wrong"),
    ("no metadata", lambda: with_field(44, 4, 0), PackError, "metadata is wrong"),
    ("padding", lambda: with_field(4000, 1, 1), PackError, "not zero after the metadata"),
    ("altered", lambda: HEADER.to_bytes()[:-1] + b"?", ChecksumError, "header was altered"),
    ("no JSON", lambda: with_metadata(lambda _: b"{"), PackError, "metadata is wrong"),
    ("a list", lambda: with_metadata(lambda _: b"[]"), PackError, "no JSON object"),
    ("deep", lambda: with_metadata(lambda _: b'{"a":' + b"[" * 3000), PackError, "metadata"),
    ("twice", lambda: with_metadata(lambda _: b'{"a":1,"a":1}'), PackError, "twice"),
    ("missing", lambda: with_metadata(lambda m: m.pop("source") and None), PackError, "members"),
    ("unknown", lambda: with_metadata(lambda m: m.update(more=1)), PackError, "members"),
    ("spaces", lambda: with_metadata(lambda m: json.dumps(m).encode()), PackError, "right form"),
    ("codec", lambda: with_metadata(lambda m: m["codec"].update(name="int8")), PackError, "codec"),
    (
        "no scale",
        lambda: with_metadata(lambda m: m["codec"].update(scale=None)),
        PackError,
        "scale",
    ),
    ("scale", lambda: with_metadata(lambda m: m["codec"].update(scale=0.1)), PackError, "float32"),
    (
        "text scale",
        lambda: with_metadata(lambda m: m["codec"].update(scale="1")),
        PackError,
        "scal",
    ),
    ("row_dim", lambda: with_metadata(lambda m: m["codec"].update(row_dim=8)), PackError, "of 8"),
    ("bool", lambda: with_metadata(lambda m: m["hash"].update(layer_id=True)), PackError, "layer"),
    ("spec", lambda: with_metadata(lambda m: m["hash"].update(ngram_size=9)), PackError, "ngram"),
    ("writer", lambda: with_metadata(lambda m: m.update(writer=3)), PackError, "writer"),
    ("source", lambda: with_metadata(lambda m: m["source"].update(codec="x")), PackError, "codec"),
    *(
        (f"identity {text!r}", with_text("source", "model_id", text), PackError, "32 hexadecimal")
        for text in (
            "",
            "\ud800" * 32,
            "\x1b[31m",
            "../" * 11,
            "A" * 32,
            "0" * 33,
            "0" * 32 + "\n",
            7,
        )
    ),
    *(
        (f"writer {text!r}", with_text(None, "writer", text), PackError, "printable")
        for text in ("\ud800", "\x1b[31mred", "two\nlines", None)
    ),
    ("seed", lambda: with_metadata(lambda m: m["hash"].update(seed=5)), HashMismatchError, "multi"),
    (
        "sizes",
        lambda: with_metadata(lambda m: m["hash"]["sizes"].reverse()),
        HashMismatchError,
        "sizes differ",
    ),
]


@pytest.mark.behaviour(29)
@pytest.mark.parametrize(
    ("data", "error", "message"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_each_wrong_header_is_refused(tmp_path: Path, data, error, message) -> None:
    """Behaviour 29: a truncated or foreign file is refused at open, saying what differs."""
    path = tmp_path / "wrong.pack"
    content = data()
    if len(content) == HEADER.geometry.header_bytes:
        content = content.ljust(HEADER.geometry.file_bytes, b"\0")
    path.write_bytes(content)
    with pytest.raises(error, match=message) as caught:
        open_pack(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 2000


@pytest.mark.behaviour(29)
@pytest.mark.parametrize("change", [-4096, -1, 1, 4096])
def test_a_file_of_the_wrong_size_is_refused(make_source, tmp_path, change) -> None:
    """Behaviour 29: cut by a block or a byte, or with bytes after its end."""
    path = tmp_path / "table.pack"
    build_pack(make_source()[0], path)
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(PackError, match="truncated" if change < 0 else "bytes after its end"):
        open_pack(path)


def test_what_is_no_file_is_refused(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PackError, match="regular file"):
        open_pack(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in (("nothing", "No such file"), ("loop", "Too many levels")):
        with pytest.raises(PackError, match=f"{name}: cannot be read: {reason}"):
            open_pack(tmp_path / name)


@pytest.fixture(scope="module")
def small_pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, torch.Tensor]:
    from files.pack.conftest import encode_table, write_source

    folder = tmp_path_factory.mktemp("fuzz")
    spec = make_spec()
    rows, codec = encode_table(spec, "fp8")
    build_pack(write_source(folder / "source", spec, rows, codec), folder / "table.pack")
    return folder / "table.pack", (folder / "table.pack").read_bytes(), rows


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_header_crashes_allocates_or_gives_a_wrong_row(small_pack, data) -> None:
    """Random bytes over random places of a header, with its checksum made right or left wrong."""
    path, whole, rows = small_pack
    header_bytes = int.from_bytes(whole[12:16], "little")
    spoilt = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        offset = data.draw(st.integers(0, 60) | st.integers(0, header_bytes - 1))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        spoilt[offset : offset + len(piece)] = piece
    spoilt = spoilt[: len(whole)]
    if data.draw(st.booleans()):
        spoilt[:header_bytes] = seal(bytes(spoilt[: header_bytes - 8]))
    path.write_bytes(spoilt[: data.draw(st.just(len(whole)) | st.integers(0, len(whole)))])
    try:
        source = open_pack(path)
    except GramaryError:
        return
    from gramary.tiers.disk import DiskTier

    tier = DiskTier(source.layout, 0, source.layout.num_rows)
    out = torch.empty(len(rows), source.layout.row_bytes, dtype=torch.uint8)
    try:
        tier.gather(torch.arange(len(rows)), out)
    except ChecksumError:
        return
    finally:
        tier.close()
    assert torch.equal(out, rows)
    assert source.spec == dataclasses.replace(source.spec)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: b"GRAMPACK" + tail))
def test_random_bytes_are_refused(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.pack"
    path.write_bytes(data)
    with pytest.raises(PackError):
        open_pack(path)
