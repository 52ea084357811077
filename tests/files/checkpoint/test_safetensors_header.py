"""The header parser against the safetensors package and against hostile files."""

import json
import os
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from gramary.errors import CheckpointError
from gramary.files.checkpoint.safetensors_header import MAX_HEADER_BYTES, read_header

GOOD = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
}


def write(path, header, data=b"\0" * 26, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    prefix = struct.pack("<Q", len(text) if length is None else length)
    path.write_bytes(prefix + text + data)
    return path


def changed(name="a", **fields):
    """The good header with fields of one tensor replaced, or removed if None."""
    entry = {key: value for key, value in {**GOOD[name], **fields}.items() if value is not None}
    return {**GOOD, name: entry}


def test_tensors_lie_where_safetensors_reads_them(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {
        "plain": torch.randn(3, 5),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "codes": torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn),
        "naïve \U0001f600": torch.ones(2, dtype=torch.bfloat16),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    data = path.read_bytes()
    entries = {entry.name: entry for entry in read_header(path)}
    assert set(entries) == set(tensors)
    for name, tensor in tensors.items():
        entry = entries[name]
        assert entry.shape == tuple(tensor.shape)
        stored = data[entry.offset : entry.end]
        assert stored == tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        assert entry.read() == stored
        assert not entry.is_truncated
    assert entries["codes"].dtype == "F8_E4M3"


def test_a_file_that_ends_early_says_which_tensors_are_cut(tmp_path):
    entries = read_header(write(tmp_path / "x", GOOD, data=b"\0" * 25))
    assert [entry.is_truncated for entry in entries] == [False, True]
    with pytest.raises(CheckpointError, match=r"expected 2 bytes of 'b' .* got 1; download"):
        entries[1].read()


def test_an_unknown_dtype_is_left_to_whoever_asked(tmp_path):
    header = {"a": {"dtype": "I3", "shape": [5], "data_offsets": [0, 26]}}
    (entry,) = read_header(write(tmp_path / "x", header))
    assert (entry.dtype, entry.nbytes) == ("I3", 26)


def test_fields_that_the_format_may_gain_are_ignored(tmp_path):
    path = write(tmp_path / "x", changed(strides=[3, 1]))
    assert [entry.name for entry in read_header(path)] == ["a", "b"]


def test_four_bit_tensors_count_half_bytes(tmp_path):
    header = {"a": {"dtype": "F4", "shape": [26, 2], "data_offsets": [0, 26]}}
    assert read_header(write(tmp_path / "x", header))[0].nbytes == 26
    header["a"]["shape"] = [51]
    with pytest.raises(CheckpointError, match=r"26 bytes do not hold 'F4' \[51\]"):
        read_header(write(tmp_path / "x", header))


HOSTILE = {
    "no brace": b"[1, 2, 3]   ",
    "byte order mark": b"\xef\xbb\xbf{}",
    "not UTF-8": b'{"\xff": 1}',
    "lone surrogate": b'{"\\ud800": {"dtype": "U8", "shape": [26], "data_offsets": [0, 26]}}',
    "not JSON": b'{"a": ',
    "two objects": b"{}{}",
    "nested too deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "key twice": b'{"a": {}, "a": {}}',
    "inner key twice": b'{"a": {"dtype": "U8", "dtype": "U8"}}',
    "NaN": b'{"a": NaN}',
    "a million digits": b'{"a": ' + b"9" * 1_000_000 + b"}",
    "metadata no object": {"__metadata__": [], **GOOD},
    "metadata of numbers": {"__metadata__": {"a": 1}, **GOOD},
    "entry no object": {**GOOD, "a": [0, 24]},
    "dtype missing": changed(dtype=None),
    "shape missing": changed(shape=None),
    "offsets missing": changed(data_offsets=None),
    "dtype no string": changed(dtype=5),
    "shape no list": changed(shape="23"),
    "shape of floats": changed(shape=[2.0, 3]),
    "shape of booleans": changed(shape=[True, 6]),
    "negative size": changed(shape=[-2, -3]),
    "size of 2^63": changed(shape=[2**63, 0], data_offsets=[0, 0]),
    "product overflows": changed(shape=[2**32, 2**32]),
    "product wraps to the right size": changed(shape=[2**62, 4, 6], data_offsets=[0, 0]),
    "huge shape": changed(shape=[2**40] * 100_000),
    "offsets no pair": changed(data_offsets=[0, 24, 24]),
    "offsets reversed": changed(data_offsets=[24, 0]),
    "negative offset": changed(data_offsets=[-24, 0]),
    "offset of 2^63": changed("b", data_offsets=[2**63, 2**63 + 2]),
    "offsets of 2^64": changed("b", data_offsets=[2**64 + 24, 2**64 + 26]),
    "size differs": changed(shape=[2, 4]),
    "overlap": changed("b", data_offsets=[22, 24]),
    "same bytes": changed("b", shape=[12], data_offsets=[0, 24]),
    "hole": changed("b", data_offsets=[25, 27]),
    "hole at the start": {"a": {"dtype": "U8", "shape": [25], "data_offsets": [1, 26]}},
    "bytes after the last": {"a": GOOD["a"]},
    "no tensors but bytes": {},
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=HOSTILE)
def test_a_malformed_header_is_refused_by_name(tmp_path, header):
    path = write(tmp_path / "x.safetensors", header)
    with pytest.raises(CheckpointError, match=r"x\.safetensors: .*download it again") as caught:
        read_header(path)
    assert len(str(caught.value)) < 1000
    # Nothing is refused here that the format's own package accepts.
    with pytest.raises((SafetensorError, OverflowError)), safe_open(path, "pt"):
        pass


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 7, struct.pack("<Q", 0), struct.pack("<Q", 1) + b"{"]
)
def test_a_file_too_short_for_a_header_is_refused(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="expected"):
        read_header(path)


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 2**32, 2**63, 2**64 - 1, 10_000])
def test_the_header_length_is_bounded_before_anything_is_read(tmp_path, length):
    path = write(tmp_path / "x", GOOD, length=length)
    if length == MAX_HEADER_BYTES + 1:
        # Large enough for the header it claims, without using the disk.
        os.truncate(path, 2 * MAX_HEADER_BYTES)
    with pytest.raises(CheckpointError, match="expected a header of 2 to"):
        read_header(path)


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling", "loop", "device"])
def test_what_is_no_regular_file_is_refused(tmp_path, kind):
    path = tmp_path / "x.safetensors"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        target = {"dangling": "nowhere", "loop": path, "device": "/dev/zero"}[kind]
        path.symlink_to(target)
    with pytest.raises(
        CheckpointError, match=r"x\.safetensors: (expected a regular|cannot be read)"
    ):
        read_header(path)


sizes = st.integers(-1, 4) | st.sampled_from([2**31, 2**62, 2**63, 2**64, True, 0.5, None, "1"])
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["U8", "F32", "F4", "BF16", "X", 1, None]),
        "shape": st.lists(sizes, max_size=3) | st.none(),
        "data_offsets": st.lists(sizes | st.integers(0, 30), min_size=1, max_size=3),
        "other": st.none(),
    },
)
headers = st.dictionaries(st.sampled_from(["a", "b", "__metadata__", ""]), entries, max_size=3)


@settings(max_examples=300, deadline=None)
@given(header=headers | st.binary(max_size=60), data=st.binary(max_size=30), pad=st.integers(0, 3))
def test_random_headers_are_refused_or_agree_with_safetensors(tmp_path_factory, header, data, pad):
    path = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    write(path, text + b" " * pad, data)
    try:
        found = read_header(path)
    except CheckpointError:
        return
    if any(entry.is_truncated or entry.dtype == "X" for entry in found):
        return
    with safe_open(path, "pt") as opened:
        assert {entry.name for entry in found} == set(opened.keys())
        for entry in found:
            assert list(entry.shape) == opened.get_slice(entry.name).get_shape()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_flipped_byte_never_gives_bytes_outside_the_file(tmp_path_factory, data):
    text = json.dumps(GOOD).encode()
    content = bytearray(struct.pack("<Q", len(text)) + text + b"\0" * 26)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(text) + 7))
        content[position] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(content)
    try:
        found = read_header(path)
    except CheckpointError:
        return
    for entry in found:
        assert entry.is_truncated or 8 < entry.offset <= entry.end <= len(content)
