"""Blobs: equal bytes back, and one test per refusal."""

import struct

import pytest
import torch
import xxhash

from gramary.errors import SlotError
from gramary.slots.blob import HEADER, WindowBlob


def make_blob(dtype: torch.dtype = torch.bfloat16) -> WindowBlob:
    window = torch.randn(9, 5).to(dtype)
    return WindowBlob(window, position=2**40 + 1, history=(-1, 248044), model_id="Modell-ä")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_round_trip(dtype: torch.dtype) -> None:
    blob = make_blob(dtype)
    back = WindowBlob.from_bytes(blob.to_bytes())
    assert torch.equal(back.window, blob.window)
    assert back.window.dtype == dtype
    assert (back.position, back.history, back.model_id) == (2**40 + 1, (-1, 248044), "Modell-ä")


def test_the_layout_is_the_one_written_down() -> None:
    window = torch.tensor([[1.0, 2.0]])
    blob = WindowBlob(window, position=3, history=(7,), model_id="m").to_bytes()
    body = (
        b"GRAMWIN\0"
        + struct.pack("<IIQQqII", 1, 3, 1, 2, 3, 1, 1)
        + struct.pack("<q", 7)
        + b"m"
        + struct.pack("<ff", 1.0, 2.0)
    )
    assert blob == body + struct.pack("<Q", xxhash.xxh64_intdigest(body))


def sealed(body: bytes) -> bytes:
    """A body with a checksum that fits."""
    return body + struct.pack("<Q", xxhash.xxh64_intdigest(body))


def with_field(index: int, value: int) -> bytes:
    """A good blob with one header field exchanged, sealed again."""
    body = make_blob().to_bytes()[:-8]
    fields = list(HEADER.unpack_from(body))
    fields[index] = value
    return sealed(HEADER.pack(*fields) + body[HEADER.size :])


REFUSALS = {
    "empty": (b"", "expected an exported window"),
    "foreign": (b"PK\3\4" + bytes(100), "expected an exported window"),
    "short_header": (make_blob().to_bytes()[:40], "expected an exported window"),
    "version": (with_field(1, 2), "expected version 1, got 2"),
    "dtype": (with_field(2, 9), r"expected a dtype code of \[1, 2, 3\], got 9"),
    "truncated": (make_blob().to_bytes()[:-1], "expected [0-9]+ bytes, got"),
    "longer": (make_blob().to_bytes() + b"\0", "expected [0-9]+ bytes, got"),
    "huge_length": (with_field(3, 2**63), "expected [0-9]+ bytes, got"),
    "huge_history": (with_field(6, 2**32 - 1), "expected [0-9]+ bytes, got"),
    "negative_position": (with_field(5, -1), "expected a position of 0 or more, got -1"),
}


@pytest.mark.parametrize(("blob", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(blob: bytes, message: str) -> None:
    with pytest.raises(SlotError, match=f"^blob: {message}"):
        WindowBlob.from_bytes(blob)


def test_every_altered_byte_is_found() -> None:
    blob = make_blob().to_bytes()
    for at in range(len(blob)):
        altered = bytearray(blob)
        altered[at] ^= 0x40
        with pytest.raises(SlotError, match=r"^blob: expected"):
            WindowBlob.from_bytes(bytes(altered))
    identity = with_field(6, 2)[:-8].replace("ä".encode(), b"\xff\xff")
    with pytest.raises(SlotError, match=r"^blob: expected an identity in UTF-8"):
        WindowBlob.from_bytes(sealed(identity))
