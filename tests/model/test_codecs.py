"""Encoding and decoding of rows, against torch's own casts and exact rationals."""

import bisect
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gramary.errors import ArgumentError
from gramary.model.codecs import (
    CODEC_NAMES,
    E2M1_MAX,
    PLAIN_DTYPES,
    Codec,
    decode_e2m1_ref,
    decode_e4m3_ref,
    decode_rows_ref,
    encode_rows,
    join_nvfp4,
)

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
ALL_BYTES = torch.arange(256, dtype=torch.int32).to(torch.uint8)


def bits(values: torch.Tensor) -> torch.Tensor:
    """The bit patterns of floats, every NaN as one pattern."""
    integer = {2: torch.int16, 4: torch.int32}[values.element_size()]
    return torch.where(values.isnan(), -1, values.contiguous().view(integer))


def make_codec(name: str, row_dim: int = 32, scale: float = 2.0**-12 * 1.375) -> Codec:
    return Codec(name, row_dim, None if name in PLAIN_DTYPES else scale)


def random_encoded(codec: Codec, num_rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_rows, codec.row_bytes)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def test_every_e4m3_code_equals_torch():
    expected = ALL_BYTES.view(torch.float8_e4m3fn).to(torch.float32)
    assert torch.equal(bits(decode_e4m3_ref(ALL_BYTES)), bits(expected))


def test_every_e2m1_pair_has_the_values_of_the_format():
    signed = torch.tensor([*E2M1, *(-v for v in E2M1)])
    expected = torch.stack((signed[ALL_BYTES.long() & 15], signed[ALL_BYTES.long() >> 4]), -1)
    assert torch.equal(bits(decode_e2m1_ref(ALL_BYTES)), bits(expected.flatten()))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [1.0, 2.0**-12, 0.000198364, 3.0e-39, 2.5e37])
def test_fp8_is_one_float32_product_and_one_rounding(dtype, scale):
    scale = torch.tensor(scale, dtype=torch.float32).item()
    codec = Codec("fp8", 256, scale)
    exact = ALL_BYTES.view(torch.float8_e4m3fn).to(torch.float64) * scale
    # A float64 holds the product of two float32 exactly, so this rounds as one float32 product.
    expected = exact.to(torch.float32).to(dtype)
    decoded = decode_rows_ref(codec, ALL_BYTES.unsqueeze(0), dtype)
    assert decoded.dtype == dtype
    assert torch.equal(bits(decoded[0]), bits(expected))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nvfp4_multiplies_block_scale_then_global_scale(dtype):
    codec = make_codec("nvfp4", row_dim=48, scale=0.3330078125)
    encoded = random_encoded(codec, 300)
    decoded = decode_rows_ref(codec, encoded, dtype)
    signed = [*E2M1, *(-v for v in E2M1)]
    scales = encoded[:, 24:].contiguous().view(torch.float8_e4m3fn).to(torch.float32)
    for row in range(0, 300, 37):
        for column in range(48):
            byte = int(encoded[row, column // 2])
            code = torch.tensor(signed[byte >> 4 if column % 2 else byte & 15])
            first = code * scales[row, column // 16]
            expected = (first * torch.tensor(codec.scale)).to(dtype)
            assert torch.equal(bits(decoded[row, column]), bits(expected)), (row, column)


def test_nvfp4_product_order_matters_and_is_the_designs():
    # (6 * 2^-9) * g is a float32 subnormal product; block and global scale first would round.
    codec = Codec("nvfp4", 16, torch.tensor(1.7e-43).item())
    encoded = torch.tensor([[0x77] * 8 + [0x01]], dtype=torch.uint8)
    inner = torch.tensor(6.0) * torch.tensor(2.0**-9)
    expected = inner * torch.tensor(codec.scale)
    other = torch.tensor(6.0) * (torch.tensor(2.0**-9) * torch.tensor(codec.scale))
    assert expected != other
    assert decode_rows_ref(codec, encoded, torch.float32)[0, 0] == expected


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", PLAIN_DTYPES)
def test_plain_rows_are_their_values_rounded_once(name, dtype):
    codec = make_codec(name)
    encoded = random_encoded(codec, 64)
    expected = encoded.view(PLAIN_DTYPES[name]).to(dtype)
    assert torch.equal(bits(decode_rows_ref(codec, encoded, dtype)), bits(expected))


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_shapes_sizes_and_default_dtype(name):
    codec = make_codec(name, row_dim=160)
    sizes = {"bf16": 320, "fp16": 320, "fp32": 640, "fp8": 160, "nvfp4": 90}
    assert codec.row_bytes == sizes[name]
    assert codec.default_dtype == PLAIN_DTYPES.get(name, torch.bfloat16)
    for leading in [(), (0,), (1,), (3, 2)]:
        encoded = torch.zeros((*leading, codec.row_bytes), dtype=torch.uint8)
        decoded = decode_rows_ref(codec, encoded)
        assert decoded.shape == (*leading, 160)
        assert decoded.dtype == codec.default_dtype
        assert decode_rows_ref(codec, encoded, torch.uint8) is encoded


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_a_view_decodes_like_its_copy(name):
    codec = make_codec(name)
    wide = random_encoded(Codec(name, 64, codec.scale), 30)
    view = wide[::2, 1 : 1 + codec.row_bytes]
    assert not view.is_contiguous()
    decoded, expected = decode_rows_ref(codec, view), decode_rows_ref(codec, view.clone())
    assert torch.equal(bits(decoded), bits(expected))


@pytest.mark.parametrize("name", PLAIN_DTYPES)
def test_plain_encoding_equals_torchs_cast(name):
    rows = torch.randn(50, 32, generator=torch.Generator().manual_seed(1))
    encoded, codec = encode_rows(name, rows)
    assert codec == Codec(name, 32)
    assert torch.equal(encoded.view(PLAIN_DTYPES[name]), rows.to(PLAIN_DTYPES[name]))


def test_fp8_encoding_equals_torchs_cast_and_saturates():
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(2)) * 40
    encoded, codec = encode_rows("fp8", rows, scale=0.5)
    expected = (rows / 0.5).to(torch.float8_e4m3fn)
    assert torch.equal(encoded, expected.view(torch.uint8))
    assert codec.scale == 0.5
    large, codec = encode_rows("fp8", torch.tensor([[1e9, -1e9, 448.0, 464.0]]), scale=1.0)
    assert decode_rows_ref(codec, large, torch.float32).tolist() == [[448.0, -448.0, 448.0, 448.0]]


def nearest_even(value: float, grid: list[float]) -> float:
    """The nearest of `grid` to a non-negative value in exact arithmetic, ties to the even index."""
    above = min(bisect.bisect_left(grid, value), len(grid) - 1)
    below = max(above - 1, 0)
    up, down = (abs(Fraction(value) - Fraction(grid[index])) for index in (above, below))
    if up == down:
        return grid[above if above % 2 == 0 else below]
    return grid[above if up < down else below]


@given(st.lists(st.floats(0, 460, width=32), min_size=16, max_size=16))
def test_fp8_encoding_rounds_to_nearest_even(values):
    grid = decode_e4m3_ref(torch.arange(127, dtype=torch.uint8)).tolist()
    encoded, codec = encode_rows("fp8", torch.tensor([values]), scale=1.0)
    decoded = decode_rows_ref(codec, encoded, torch.float32)[0].tolist()
    assert decoded == [nearest_even(value, grid) for value in values]


@given(st.lists(st.floats(-6, 6, width=32), min_size=15, max_size=15))
def test_nvfp4_encoding_rounds_to_nearest_even(values):
    # A six in the block makes its scale exactly 1.
    encoded, codec = encode_rows("nvfp4", torch.tensor([[*values, E2M1_MAX]]), scale=1.0)
    assert int(encoded[0, -1]) == 0x38
    decoded = decode_rows_ref(codec, encoded, torch.float32)[0].tolist()
    for value, got in zip(values, decoded, strict=False):
        assert abs(got) == nearest_even(abs(value), E2M1)
        assert got == 0 or (got < 0) == (value < 0)


def test_nvfp4_ties_go_to_the_even_code():
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]
    encoded, codec = encode_rows("nvfp4", torch.tensor([ties * 2]), scale=1.0)
    decoded = decode_rows_ref(codec, encoded, torch.float32)[0, :8].tolist()
    assert decoded == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]


@pytest.mark.parametrize(("name", "relative"), [("fp8", 2**-4), ("nvfp4", 0.25)])
def test_chosen_scale_uses_the_whole_range(name, relative):
    rows = torch.randn(40, 160, generator=torch.Generator().manual_seed(3)) * 0.02
    encoded, codec = encode_rows(name, rows)
    decoded = decode_rows_ref(codec, encoded, torch.float32)
    top = rows.abs().amax()
    assert (decoded - rows).abs().max() <= relative * top
    assert decoded.abs().max() == pytest.approx(top.item(), rel=2**-4)


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_zero_rows_and_no_rows_encode(name):
    zeros, codec = encode_rows(name, torch.zeros(3, 32))
    assert not decode_rows_ref(codec, zeros).any()
    empty, codec = encode_rows(name, torch.zeros(0, 32))
    assert empty.shape == (0, codec.row_bytes)


def test_join_nvfp4_puts_codes_before_block_scales():
    weight = torch.arange(32, dtype=torch.uint8).view(2, 16)
    scales = torch.tensor([[56, 57], [58, 59]], dtype=torch.uint8)
    joined = join_nvfp4(weight, scales.view(torch.float8_e4m3fn))
    assert torch.equal(joined, torch.cat((weight, scales), 1))
    assert joined.shape[1] == Codec("nvfp4", 32, 1.0).row_bytes


@pytest.mark.parametrize(
    ("name", "row_dim", "scale", "named"),
    [
        ("fp4", 32, None, "codec"),
        ("bf16", 0, None, "row_dim"),
        ("bf16", 32.0, None, "row_dim"),
        ("nvfp4", 24, 1.0, "multiple of 16"),
        ("fp8", 32, None, "scale"),
        ("nvfp4", 32, None, "scale"),
        ("fp8", 32, 0.0, "scale"),
        ("fp8", 32, -1.0, "scale"),
        ("fp8", 32, float("nan"), "scale"),
        ("fp8", 32, float("inf"), "scale"),
        ("fp8", 32, 0.1, "exact in float32"),
        ("fp8", 32, 1e300, "exact in float32"),
        ("bf16", 32, 1.0, "scale"),
    ],
)
def test_a_wrong_codec_is_refused(name, row_dim, scale, named):
    with pytest.raises(ArgumentError, match=named):
        Codec(name, row_dim, scale)


def test_wrong_rows_are_refused():
    codec = make_codec("fp8")
    with pytest.raises(ArgumentError, match=r"encoded: expected uint8 \[\.\.\., 32\]"):
        decode_rows_ref(codec, torch.zeros(2, 31, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match="got int8"):
        decode_rows_ref(codec, torch.zeros(2, 32, dtype=torch.int8))
    with pytest.raises(ArgumentError, match="dtype"):
        decode_rows_ref(codec, torch.zeros(2, 32, dtype=torch.uint8), torch.float64)
    with pytest.raises(ArgumentError, match="rows"):
        encode_rows("bf16", torch.zeros(2, 32, dtype=torch.float64))
    with pytest.raises(ArgumentError, match="not finite"):
        encode_rows("fp8", torch.full((1, 32), float("inf")))
    with pytest.raises(ArgumentError, match="block_scales"):
        join_nvfp4(torch.zeros(2, 16, dtype=torch.uint8), torch.zeros(3, 2, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match="weight"):
        join_nvfp4(torch.zeros(2, 15, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8))
