"""Rows encoded anew by the core: the bytes of the plain-torch encoder, for every rounding case."""

import math

import pytest
import torch

from gramary.model.codecs import (
    Codec,
    decode_e2m1_ref,
    decode_e4m3_ref,
    decode_rows_ref,
    encode_rows,
)
from gramary.native.recode import Encoding, find_largest, recode

ROW_DIM = 32
TARGETS = ("bf16", "fp8", "nvfp4")
SCALES = (1.0, 2.0**-12, 0.00020217, 3.0)


def neighbours(values: torch.Tensor) -> torch.Tensor:
    """The values, the next float below and above each, and all of them negated."""
    values = values.to(torch.float32)
    infinity = torch.tensor(math.inf)
    near = torch.cat([values, values.nextafter(infinity), values.nextafter(-infinity)])
    return torch.cat([near, -near])


def rounding_cases(name: str) -> torch.Tensor:
    """All codes' values, the middles between neighbours, and what lies next to those."""
    if name == "bf16":
        codes = torch.randint(0, 0x7F7F, (2000,)).to(torch.int32) << 16
        values = codes.view(torch.float32)
        middles = (codes | 0x8000).view(torch.float32)
    else:
        all_codes = torch.arange(256, dtype=torch.uint8)
        values = decode_e4m3_ref(all_codes[:127]) if name == "fp8" else decode_e2m1_ref(all_codes)
        values = values.unique()
        middles = (values[1:].double() + values[:-1].double()).div(2).float()
    return neighbours(torch.cat([values, middles]))


def as_rows(values: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
    """float32 [n, ROW_DIM], the last row filled up."""
    padding = -values.numel() % ROW_DIM
    return torch.cat([values, torch.full((padding,), fill)]).view(-1, ROW_DIM)


def compare(rows: torch.Tensor, name: str, scale: float | None) -> None:
    """Compares the core with `encode_rows`, bytes and report."""
    expected, codec = encode_rows(name, rows, scale)
    found = torch.full_like(expected, 0xA5)
    source = Encoding("fp32", rows.shape[1], None)
    encoded = rows.contiguous().view(torch.uint8)
    report = recode(source, Encoding(name, rows.shape[1], codec.scale), encoded, found)
    differs = (found != expected).nonzero()
    assert not len(differs), (name, scale, differs[0], rows[differs[0][0]])
    assert report.first_not_finite is None
    values = decode_rows_ref(codec, expected, torch.float32)
    finite = torch.isfinite(values - rows)
    if not rows.numel() or not bool(finite.all()):
        return
    difference = values - rows
    assert report.max_abs == pytest.approx(float(difference.abs().max()), rel=1e-6)
    squares = float(difference.double().square().sum())
    assert report.sum_squares == pytest.approx(squares, rel=1e-5, abs=1e-300)
    assert report.sum_source_squares == pytest.approx(float(rows.double().square().sum()))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["fp8", "nvfp4"])
def test_halfway_values_go_to_the_even_code(name: str, scale: float) -> None:
    """Every middle between two codes and its neighbours, at several scales of the table."""
    scale = float(torch.tensor(scale, dtype=torch.float32))
    rows = as_rows(rounding_cases(name) * scale)
    if name == "nvfp4":
        # A block whose largest magnitude is 6 steps has the step 1, so that middles are met.
        rows = rows.view(-1, 16).clone()
        rows[:, 0] = 6.0 * scale
        rows = rows.view(-1, ROW_DIM)
    compare(rows, name, scale)


def test_block_scales_are_rounded_to_even_too() -> None:
    """Blocks whose largest magnitude over 6 lies at or beside a middle between e4m3 codes."""
    middles = rounding_cases("fp8")
    rows = as_rows(middles.abs() * 6.0)
    blocks = rows.view(-1, 1).repeat(1, 16) * torch.linspace(-1, 1, 16)
    blocks[:, -1] = rows.view(-1)
    compare(blocks.view(-1, ROW_DIM), "nvfp4", 1.0)


def test_bf16_rounds_every_value_that_is_not_a_nan() -> None:
    compare(as_rows(rounding_cases("bf16")), "bf16", None)
    compare(as_rows(torch.tensor([math.inf, -math.inf, 3.4e38, 1e-45, -0.0])), "bf16", None)


@pytest.mark.parametrize("name", TARGETS)
def test_values_of_any_size(name: str) -> None:
    """Random bit patterns from the least subnormal to the largest float, zeros of both signs."""
    generator = torch.Generator().manual_seed(7)
    bits = torch.randint(-(2**31), 2**31, (40_000,), generator=generator, dtype=torch.int64)
    values = bits.to(torch.int32).view(torch.float32)
    values = torch.where(torch.isfinite(values), values, 0.0)
    values[::97] = -0.0
    rows = as_rows(values)
    for scale in (None,) if name == "bf16" else (None, 1.0, 1e-30, 1e30):
        compare(rows, name, scale if scale is None else float(torch.tensor(scale)))
    compare(torch.randn(3000, ROW_DIM, generator=generator) * 0.02, name, None)
    compare(torch.zeros(0, ROW_DIM), name, None if name == "bf16" else 1.0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kept_as", ["bf16", "fp16", "fp8", "nvfp4"])
def test_every_source_codec(kept_as: str, target: str) -> None:
    """Decoding and encoding in one pass gives what the two plain-torch steps give."""
    encoded, source = encode_rows(kept_as, torch.randn(1500, 160) * 0.02)
    values = decode_rows_ref(source, encoded, torch.float32)
    expected, described = encode_rows(target, values)
    found = torch.full_like(expected, 0xA5)
    report = recode(
        Encoding(kept_as, 160, source.scale), Encoding(target, 160, described.scale), encoded, found
    )
    assert torch.equal(found, expected)
    again = recode(
        Encoding(kept_as, 160, source.scale), Encoding(target, 160, described.scale), encoded, found
    )
    assert report == again, "sums do not depend on the threads"
    largest, wrong = find_largest(Encoding(kept_as, 160, source.scale), encoded)
    assert (largest, wrong) == (float(values.abs().max()), None)


@pytest.mark.parametrize("row", [0, 7, 600, 1299])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_row_that_is_not_finite_is_named(row: int, value: float) -> None:
    rows = torch.zeros(1300, ROW_DIM)
    rows[row:, 31] = value
    source, encoded = Encoding("fp32", ROW_DIM, None), rows.view(torch.uint8)
    assert find_largest(source, encoded)[1] == row
    for target in ("fp8", "nvfp4"):
        codec = Codec(target, ROW_DIM, 1.0)
        out = torch.empty(1300, codec.row_bytes, dtype=torch.uint8)
        report = recode(source, Encoding(target, ROW_DIM, 1.0), encoded, out)
        assert report.first_not_finite == row
