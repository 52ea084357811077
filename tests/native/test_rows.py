"""Native rows: every code and bit pattern on every instruction set, shapes, bounds, offsets."""

import ctypes
import mmap
import os
import signal
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gramary.model.codecs import PLAIN_DTYPES, Codec, decode_rows_ref
from gramary.native import _core, rows
from gramary.native.rows import NO_ROWS, RowExtent
from gramary.ops.reference.embed import lookup_ref

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.uint8]
FP8_SCALE = torch.tensor(2e-4).item()
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
CODECS = [
    Codec("bf16", 160), Codec("fp16", 160), Codec("fp32", 160),
    Codec("fp8", 160, FP8_SCALE), Codec("nvfp4", 160, FP8_SCALE),
    Codec("bf16", 7), Codec("fp16", 33), Codec("fp32", 1), Codec("fp8", 49, 1.0),
    Codec("nvfp4", 16, 0.5),
]  # fmt: skip


def name_of(value: Any) -> str:
    """Returns a short name for a codec or dtype, for test ids."""
    if isinstance(value, Codec):
        return f"{value.name}-{value.row_dim}"
    return str(value).removeprefix("torch.")


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Demands equal bits, any NaN for a NaN, and names the first place that differs."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    integers = INTEGERS[got.element_size()]
    wrong = got.view(integers) != expected.view(integers)
    wrong &= ~(got.isnan() & expected.isnan())
    if bool(wrong.any()):
        place = tuple(wrong.nonzero()[0].tolist())
        pytest.fail(f"{int(wrong.sum())} differ, first at {place}: {got[place]}, {expected[place]}")


def random_rows(codec: Codec, count: int, seed: int = 0) -> torch.Tensor:
    """Returns rows of random bytes: every code, NaN and infinity among them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, codec.row_bytes), dtype=torch.uint8, generator=generator)


def extent_of(encoded: torch.Tensor, first_row: int = 0) -> RowExtent:
    """Returns a contiguous tensor of encoded rows as an extent."""
    return RowExtent(encoded.data_ptr(), first_row, encoded.shape[0])


def poisoned(codec: Codec, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a result buffer that holds what no decoder writes."""
    out = torch.empty(count, codec.output_width(dtype), dtype=dtype)
    return out.fill_(0xAB) if dtype == torch.uint8 else out.fill_(-12345.0)


def decode(codec: Codec, encoded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns natively decoded rows."""
    out = poisoned(codec, encoded.shape[0], dtype)
    rows.decode(codec.name, codec.row_dim, codec.scale, encoded, out)
    return out


def lookup(
    codec: Codec, row_ids: torch.Tensor, extent: RowExtent, num_table_rows: int, dtype: torch.dtype
) -> torch.Tensor:
    """Returns natively looked up rows."""
    out = poisoned(codec, row_ids.numel(), dtype)
    wrong = rows.lookup(
        codec.name, codec.row_dim, codec.scale, row_ids, extent, num_table_rows, out
    )
    assert wrong is None
    return out


# Every value of every encoding.


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=name_of)
@pytest.mark.parametrize("scale", [1.0, 2e-4, 3.7e30, 1e-38, 448.0])
def test_all_fp8_codes(dtype: torch.dtype, scale: float) -> None:
    codec = Codec("fp8", 256, torch.tensor(scale).item())
    codes = torch.arange(256).to(torch.uint8)
    values = codes.view(torch.float8_e4m3fn).to(torch.float32)
    assert int(values.isnan().sum()) == 2
    assert_same_bits(decode(codec, codes[None], dtype)[0], (values * codec.scale).to(dtype))


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=name_of)
@pytest.mark.parametrize("scale", [1.0, 2e-4, 1e35])
def test_all_nvfp4_codes(dtype: torch.dtype, scale: float) -> None:
    codec = Codec("nvfp4", 256 * 16, torch.tensor(scale).item())
    # 256 blocks of all 16 codes, one for each block scale.
    codes = torch.tensor([low | (low + 1) << 4 for low in range(0, 16, 2)], dtype=torch.uint8)
    block_scales = torch.arange(256).to(torch.uint8)
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat([magnitudes, -magnitudes])
    scales = block_scales.view(torch.float8_e4m3fn).to(torch.float32)
    expected = (values * scales[:, None] * torch.tensor(codec.scale)).to(dtype)
    encoded = torch.cat([codes.repeat(256), block_scales])[None]
    assert_same_bits(decode(codec, encoded, dtype)[0], expected.flatten())


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=name_of)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_all_16_bit_patterns(name: str, dtype: torch.dtype) -> None:
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16)
    encoded = patterns.view(torch.uint8)[None]
    got = decode(Codec(name, 2**16), encoded, dtype)[0]
    assert_same_bits(got, patterns.view(PLAIN_DTYPES[name]).to(dtype))


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=name_of)
def test_fp32_patterns(dtype: torch.dtype) -> None:
    # Every sign and exponent with mantissas on, and next to, every place where rounding turns.
    low = [0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    high = [0, 0x2000, 0x10000, 0x18000, 0x40000, 0x400000, 0x7F0000, 0x7FE000]
    mantissas = {(one | other) & 0x7FFFFF for one in low for other in high}
    patterns = [
        (head << 23 | mantissa) - (1 << 32 if head >= 256 else 0)
        for head in range(512) for mantissa in sorted(mantissas)
    ]  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31, (100_000,), dtype=torch.int32, generator=generator)
    bits = torch.cat([torch.tensor(patterns, dtype=torch.int32), random])
    got = decode(Codec("fp32", bits.numel()), bits.view(torch.uint8)[None], dtype)[0]
    assert_same_bits(got, bits.view(torch.float32).to(dtype))


# Every operation against plain torch, for awkward shapes.


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("count", [0, 1, 63, 129, 1100])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("codec", CODECS, ids=name_of)
def test_lookup_and_decode_equal_the_reference(
    codec: Codec, dtype: torch.dtype, count: int
) -> None:
    encoded = random_rows(codec, 300)
    generator = torch.Generator().manual_seed(count)
    # Duplicates, the first and last row, no row, and rows on both sides of the extent.
    row_ids = torch.randint(-1, 500, (count,), generator=generator)
    row_ids[::7], row_ids[1::7], row_ids[2::7] = -1, 100, 399
    got = lookup(codec, row_ids, extent_of(encoded, first_row=100), 500, dtype)
    expected = lookup_ref(codec, row_ids, encoded, first_row=100, num_table_rows=500, dtype=dtype)
    assert_same_bits(got, expected)
    some = encoded[:count]
    assert_same_bits(decode(codec, some, dtype), decode_rows_ref(codec, some, dtype))


@settings(max_examples=60, deadline=None)
@given(
    codec=st.sampled_from(CODECS),
    dtype=st.sampled_from(DTYPES),
    row_ids=st.lists(st.integers(-1, 40), max_size=80),
    first_row=st.integers(0, 30),
    num_rows=st.integers(0, 10),
    shift=st.integers(0, 3),
    level=st.sampled_from([0, 1, 2]),
)
def test_any_extent_at_any_address(
    codec: Codec, dtype: torch.dtype, row_ids: list[int], first_row: int, num_rows: int,
    shift: int, level: int,
) -> None:  # fmt: skip
    backing = torch.zeros(num_rows * codec.row_bytes + 8, dtype=torch.uint8)
    encoded = backing[shift : shift + num_rows * codec.row_bytes].view(num_rows, codec.row_bytes)
    encoded.copy_(random_rows(codec, num_rows))
    out = torch.zeros(len(row_ids) * codec.output_width(dtype) + 8, dtype=dtype)
    width = codec.output_width(dtype)
    result = out[shift : out.numel() - 8 + shift].view(len(row_ids), width)
    _core.set_simd_level(level)
    try:
        wrong = rows.lookup(
            codec.name,
            codec.row_dim,
            codec.scale,
            torch.tensor(row_ids).long(),
            RowExtent(backing.data_ptr() + shift, first_row, num_rows),
            41,
            result,
        )
    finally:
        _core.set_simd_level(_core.detected_simd_level())
    assert wrong is None
    expected = lookup_ref(codec, torch.tensor(row_ids).long(), encoded, first_row=first_row,
                          num_table_rows=41, dtype=dtype)  # fmt: skip
    assert_same_bits(result, expected)
    rest = torch.cat([out[:shift], out[out.numel() - 8 + shift :]])
    assert not bool(rest.any())


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("codec", CODECS[:5], ids=name_of)
def test_outputs_beyond_the_caches(codec: Codec, dtype: torch.dtype) -> None:
    count = 60_000 if codec.output_width(dtype) < 160 else 30_000
    encoded = random_rows(codec, 5000)
    row_ids = torch.randint(-1, 5000, (count,), generator=torch.Generator().manual_seed(1))
    got = lookup(codec, row_ids, extent_of(encoded), 5000, dtype)
    assert_same_bits(got, lookup_ref(codec, row_ids, encoded, dtype=dtype))


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("count", [0, 1, 5, 1500])
@pytest.mark.parametrize("codec", CODECS, ids=name_of)
def test_decode_to_positions(codec: Codec, count: int) -> None:
    encoded = random_rows(codec, count)
    positions = torch.randperm(2 * count, generator=torch.Generator().manual_seed(3))[:count]
    for dtype in DTYPES:
        out = poisoned(codec, 2 * count, dtype)
        expected = out.clone()
        rows.decode(codec.name, codec.row_dim, codec.scale, encoded, out, positions)
        expected[positions] = decode_rows_ref(codec, encoded, dtype)
        assert_same_bits(out, expected)


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("row_bytes", [1, 31, 32, 90, 160, 4096])
def test_gather(row_bytes: int) -> None:
    encoded = torch.randint(256, (50, row_bytes), dtype=torch.uint8)
    row_ids = torch.tensor([10, 59, 9, 60, -1, 10, 2**63 - 1, 35, -(2**63), -2])
    out = torch.full((10, row_bytes), 0xAB, dtype=torch.uint8)
    rows.gather(row_ids, extent_of(encoded, first_row=10), row_bytes, out)
    expected = torch.zeros(10, row_bytes, dtype=torch.uint8)
    expected[[0, 1, 5, 7]] = encoded[[0, 49, 0, 25]]
    assert torch.equal(out, expected)


def test_an_empty_extent_gives_zero_rows() -> None:
    got = lookup(CODECS[3], torch.tensor([0, 5, -1]), NO_ROWS, 6, torch.bfloat16)
    assert not bool(got.any())


@pytest.mark.parametrize("wrong", [-2, -(2**63), 300, 2**63 - 1])
@pytest.mark.parametrize("count", [4, 5000])
def test_the_first_wrong_id_is_found(count: int, wrong: int) -> None:
    codec = CODECS[3]
    encoded = random_rows(codec, 300)
    row_ids = torch.zeros(count, dtype=torch.int64)
    row_ids[count // 2 + 1 :] = wrong
    out = poisoned(codec, count, torch.bfloat16)
    found = rows.lookup(codec.name, 160, codec.scale, row_ids, extent_of(encoded), 300, out)
    assert found == count // 2 + 1


# Memory: nothing outside of the rows is touched, and offsets do not wrap.


def guarded(num_bytes: int) -> tuple[mmap.mmap, torch.Tensor]:
    """Returns writable bytes that end where the next page kills the process that touches it."""
    page = mmap.PAGESIZE
    size = -(-num_bytes // page) * page
    memory = mmap.mmap(-1, size + page)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(whole.data_ptr() + size)
    assert libc.mprotect(address, ctypes.c_size_t(page), 0) == 0
    return memory, whole[size - num_bytes : size]


@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("codec", CODECS, ids=name_of)
def test_nothing_is_touched_behind_the_last_row(codec: Codec) -> None:
    count = 40
    for dtype in DTYPES:
        _memory, source = guarded(count * codec.row_bytes)
        encoded = source.view(count, codec.row_bytes)
        encoded.copy_(random_rows(codec, count))
        width = codec.output_width(dtype)
        _other_memory, target = guarded(count * width * dtype.itemsize)
        out = target.view(dtype).view(count, width)
        row_ids = torch.arange(count)
        rows.lookup(codec.name, codec.row_dim, codec.scale, row_ids, extent_of(encoded), count, out)
        assert_same_bits(out, decode_rows_ref(codec, encoded, dtype))


def sparse(num_bytes: int) -> torch.Tensor:
    """Returns zero bytes that take memory only where they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), dtype=torch.uint8)


@pytest.mark.behaviour(27)
@pytest.mark.usefixtures("simd_level")
@pytest.mark.parametrize("codec", CODECS[:5], ids=name_of)
def test_offsets_beyond_31_and_32_bits(codec: Codec) -> None:
    """Behaviour 27: rows and results beyond 2^31 and 2^32 bytes and elements are right."""
    num_rows = (2**32 + 2**30) // codec.row_bytes
    encoded = sparse(num_rows * codec.row_bytes).view(num_rows, codec.row_bytes)
    near = [edge // codec.row_bytes + step for edge in (2**31, 2**32) for step in (-1, 0, 1)]
    row_ids = torch.tensor([*near, num_rows - 1, 0])
    encoded[row_ids] = random_rows(codec, row_ids.numel())
    expected = decode_rows_ref(codec, encoded[row_ids], torch.bfloat16)
    got = lookup(codec, row_ids, extent_of(encoded), num_rows, torch.bfloat16)
    assert_same_bits(got, expected)
    # The same rows in an extent that begins far into a table of more than 2^32 rows.
    first_row = 2**33
    got = lookup(codec, row_ids + first_row, extent_of(encoded, first_row), 2**34, torch.bfloat16)
    assert_same_bits(got, expected)
    # And far into a result: elements beyond 2^31, bytes beyond 2^32.
    num_out_rows = (2**31 + 2**20) // codec.row_dim
    out = sparse(num_out_rows * codec.row_dim * 2).view(torch.bfloat16).view(num_out_rows, -1)
    near = [edge // (2 * codec.row_dim) + step for edge in (2**31, 2**32) for step in (-1, 0, 1)]
    positions = torch.tensor([*near, num_out_rows - 1, 0])
    rows.decode(codec.name, codec.row_dim, codec.scale, encoded[row_ids], out, positions)
    assert_same_bits(out[positions], expected)


# Threads and processes.


def test_many_threads_at_once() -> None:
    codec = CODECS[3]
    encoded = random_rows(codec, 3000)
    failures: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for count in (10, 3000, 40_000):
            row_ids = torch.randint(3000, (count,), generator=generator)
            got = lookup(codec, row_ids, extent_of(encoded), 3000, torch.uint8)
            if not torch.equal(got, encoded[row_ids]):
                failures.append(f"seed {seed}, {count} rows")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_forked_child_has_no_threads_and_still_works() -> None:
    codec = CODECS[3]
    encoded = random_rows(codec, 3000)
    row_ids = torch.arange(3000).repeat(4)
    out = lookup(codec, row_ids, extent_of(encoded), 3000, torch.uint8)
    expected = out.numpy().tobytes()
    out.zero_()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        rows.lookup(codec.name, 160, codec.scale, row_ids, extent_of(encoded), 3000, out)
        os._exit(0 if out.numpy().tobytes() == expected else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


def test_wrong_calls_are_caught_before_the_core() -> None:
    codec = CODECS[3]
    encoded = random_rows(codec, 4)
    out = torch.empty(4, 160, dtype=torch.bfloat16)
    ids = torch.arange(4)
    extent = extent_of(encoded)
    wrong_calls: list[Any] = [
        lambda: rows.decode("fp8", 160, 1.0, encoded, out[:3]),
        lambda: rows.decode("fp8", 160, 1.0, encoded.t(), out),
        lambda: rows.decode("fp8", 160, None, encoded, out),
        lambda: rows.decode("bf16", 80, 1.0, encoded, out),
        lambda: rows.decode("nvfp4", 15, 1.0, encoded, out),
        lambda: rows.decode("fp8", 160, 1.0, encoded, out, ids[:3]),
        lambda: rows.lookup("fp8", 160, 1.0, ids.int(), extent, 4, out),
        lambda: rows.lookup("fp8", 160, 1.0, ids, extent, 4, out.t()),
        lambda: rows.gather(ids, extent, 160, torch.empty(4, 159, dtype=torch.uint8)),
    ]
    for call in wrong_calls:
        with pytest.raises(AssertionError):
            call()


@pytest.mark.parametrize("count", [0, 1, 63, 129, 5000])
def test_places_are_those_of_the_ids_in_the_run(count: int) -> None:
    row_ids = torch.randint(-3, 40, (count,), generator=torch.Generator().manual_seed(count))
    places, ids = rows.find_places(row_ids, 10, 25)
    expected = ((row_ids >= 10) & (row_ids < 25)).nonzero().view(-1)
    assert torch.equal(places, expected)
    assert torch.equal(ids, row_ids[expected])


@pytest.mark.parametrize("wrong", [-2, -(2**63), 40, 2**63 - 1])
@pytest.mark.parametrize("place", [0, 1023, 1024, 2999])
def test_the_first_wrong_row_id_is_found(place: int, wrong: int) -> None:
    row_ids = torch.randint(-1, 40, (3000,), generator=torch.Generator().manual_seed(1))
    assert rows.first_wrong_row_id(row_ids, 40) is None
    row_ids[place:] = wrong
    assert rows.first_wrong_row_id(row_ids, 40) == place


@pytest.mark.parametrize("count", [1, 63, 513, 3000])
def test_rows_for_a_device_have_the_same_bytes(count: int) -> None:
    table = torch.randint(0, 256, (500, 160), dtype=torch.uint8)
    extent = RowExtent(table.data_ptr(), 0, 500)
    row_ids = torch.randint(-1, 500, (count,))
    cached = torch.full((count, 160), 0xA5, dtype=torch.uint8)
    streamed = torch.full((count + 1, 160), 0xA5, dtype=torch.uint8)
    rows.gather(row_ids, extent, 160, cached)
    for out in (streamed[:count], streamed.view(-1)[16:][: count * 160].view(count, 160)):
        rows.gather(row_ids, extent, 160, out, is_sent_on=True)
        assert torch.equal(out, cached)
