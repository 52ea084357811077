"""Staged rows decoded by the kernel (or interpreted) against the codecs' reference."""

import embed_truth
import pytest
import torch
from embed_stage import DEVICE, DTYPES, TILE, fresh, on_device, random_table
from hypothesis import given, settings
from hypothesis import strategies as st

from gramary.errors import ArgumentError
from gramary.model.codecs import Codec, decode_rows_ref
from gramary.ops._triton.decode import decode
from gramary.ops._triton.tiles import Tile

# Values beyond float16 become infinite; numpy, under the interpreter, says so.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")

CODECS = {
    "bf16": Codec("bf16", 160),
    "fp16": Codec("fp16", 160),
    "fp32": Codec("fp32", 160),
    "fp8": Codec("fp8", 160, 2.0**-12 * 1.25),
    "nvfp4": Codec("nvfp4", 160, 2.0**-3 * 1.5),
}


def width(codec: Codec, dtype: torch.dtype) -> int:
    """Columns of an output row."""
    return codec.row_bytes if dtype == torch.uint8 else codec.row_dim


def check(codec: Codec, rows: torch.Tensor, dtype: torch.dtype, tile: Tile | None = TILE) -> None:
    """Raises where decoding `rows` does not give the reference's bits."""
    out = fresh((rows.shape[0], width(codec, dtype)), dtype)
    assert decode(rows.to(DEVICE), codec, out, tile=tile) is out
    embed_truth.assert_same(out, decode_rows_ref(codec, rows, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CODECS)
def test_random_rows_of_every_codec(name: str, dtype: torch.dtype):
    for num_rows in (1, 21):
        check(CODECS[name], random_table(CODECS[name], num_rows, seed=num_rows), dtype)


@pytest.mark.parametrize("num_rows", [63, 129])
def test_many_rows(num_rows: int):
    codec = Codec("fp8", 12, 0.5)
    check(codec, random_table(codec, num_rows), torch.bfloat16, tile=None)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.00021457672119140625, 2.0**-133, 1.5 * 2.0**90])
def test_all_256_codes_of_fp8(dtype: torch.dtype, scale: float):
    """Each code alone, with scales that leave products normal, subnormal, zero and infinite."""
    rows = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    check(Codec("fp8", 16, scale), rows, dtype)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.00021457672119140625, 2.0**-130, 1.5 * 2.0**90])
def test_all_codes_and_block_scales_of_nvfp4(dtype: torch.dtype, scale: float):
    """Every 4-bit code under every block scale."""
    codes = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], dtype=torch.uint8)
    block_scales = torch.arange(256, dtype=torch.uint8).unsqueeze(1)
    check(Codec("nvfp4", 16, scale), torch.cat([codes.expand(256, 8), block_scales], 1), dtype)


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(sorted(CODECS)),
    row_dim=st.integers(1, 70),
    num_rows=st.integers(0, 20),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_any_row_width(name: str, row_dim: int, num_rows: int, dtype: torch.dtype, seed: int):
    """Rows of odd widths start at odd addresses and end inside a word."""
    row_dim = row_dim * 16 if name == "nvfp4" else row_dim
    codec = Codec(name, row_dim, CODECS[name].scale)
    check(codec, random_table(codec, num_rows, seed), dtype)


@pytest.mark.parametrize("tile", [(1, 32, 1), (2, 2, 1), (128, 4, 8)], ids=str)
@pytest.mark.parametrize("name", CODECS)
def test_the_tile_does_not_change_the_result(name: str, tile: tuple[int, int, int]):
    check(CODECS[name], random_table(CODECS[name], 5), torch.bfloat16, Tile(*tile))


@pytest.mark.parametrize("name", CODECS)
def test_rows_that_start_off_the_alignment(name: str):
    """A staged row may begin at any element: a view one row (and two bytes) into a buffer."""
    codec = Codec(name, 32, CODECS[name].scale)
    shift = {"fp32": 4, "fp8": 1, "nvfp4": 1}.get(name, 2)
    rows = random_table(codec, 9)
    buffer = torch.zeros(rows.numel() + shift, dtype=torch.uint8, device=DEVICE)
    buffer[shift:] = rows.flatten().to(DEVICE)
    for dtype in (torch.bfloat16, torch.uint8):
        out = fresh((9, width(codec, dtype)), dtype)
        decode(buffer[shift:].view(9, -1), codec, out)
        embed_truth.assert_same(out, decode_rows_ref(codec, rows, dtype))


@pytest.mark.parametrize("position_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8], ids=str)
def test_scattered_rows(dtype: torch.dtype, position_dtype: torch.dtype):
    """Rows go to their positions, those outside the output nowhere, the rest stays."""
    codec = CODECS["fp8"]
    rows = random_table(codec, 6)
    out = fresh((5, width(codec, dtype)), dtype)
    expected = out.cpu().clone()
    positions = on_device([3, -1, 0, 5, 4, -(2**31)], position_dtype)
    decode(rows.to(DEVICE), codec, out, positions)
    expected[[3, 0, 4]] = decode_rows_ref(codec, rows[[0, 2, 4]], dtype)
    embed_truth.assert_same(out, expected)


def test_what_is_refused():
    rows = random_table(CODECS["fp8"], 4).to(DEVICE)
    with pytest.raises(ArgumentError, match="contiguous"):
        decode(rows, CODECS["fp8"], fresh((4, 320), torch.bfloat16)[:, ::2])
    with pytest.raises(ArgumentError, match="float32 or uint8, got torch"):
        decode(rows, CODECS["fp8"], fresh((4, 160), torch.int64))
    with pytest.raises(ArgumentError, match="scale: expected at most"):
        decode(rows, Codec("fp8", 160, 2.0**125), fresh((4, 160), torch.bfloat16))
    shifted = torch.zeros(4 * 320 + 1, dtype=torch.uint8, device=DEVICE)[1:].view(4, 320)
    with pytest.raises(ArgumentError, match="2-byte alignment"):
        decode(shifted, CODECS["bf16"], fresh((4, 160), torch.float32))
