"""What the built core needs of a machine: the C, C++ and math libraries, and nothing else.

Source: the ELF specification's program header and dynamic section (elf(5)).
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import torch

from gramary.native import _core

# The compiler's own run-time library and the loader belong to the first two; older C libraries come
# in several parts.
ALLOWED = ("libc.so.", "libm.so.", "libpthread.so.", "libdl.so.", "librt.so.")
ALLOWED += ("libstdc++.so.", "libc++.so.", "libc++abi.so.", "libgcc_s.so.", "ld-linux")

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS = 1, 5


def read_segments(elf: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yields (type, offset in the file, address, bytes in the file) of each program header."""
    assert elf[:6] == b"\x7fELF\x02\x01", "a little-endian 64-bit ELF file"
    (table,) = struct.unpack_from("<Q", elf, 32)
    entry_bytes, num_entries = struct.unpack_from("<HH", elf, 54)
    for start in range(table, table + entry_bytes * num_entries, entry_bytes):
        kind, _, offset, address, _, num_bytes = struct.unpack_from("<IIQQQQ", elf, start)
        yield kind, offset, address, num_bytes


def read_needed(elf: bytes) -> list[str]:
    """Returns the names of the shared libraries that a file asks the loader for."""
    segments = list(read_segments(elf))
    (dynamic,) = ((offset, size) for kind, offset, _, size in segments if kind == _DYNAMIC)
    entries = list(struct.iter_unpack("<qQ", elf[dynamic[0] : sum(dynamic)]))
    (strings,) = (value for tag, value in entries if tag == _STRINGS)
    (start,) = (
        offset + strings - address
        for kind, offset, address, size in segments
        if kind == _LOAD and address <= strings < address + size
    )
    names = (start + value for tag, value in entries if tag == _NEEDED)
    return [elf[name : elf.index(b"\0", name)].decode() for name in names]


def test_the_core_links_against_the_c_cxx_and_math_libraries_alone() -> None:
    needed = read_needed(Path(_core.__file__).read_bytes())
    assert any(name.startswith("libc.so.") for name in needed)
    assert [name for name in needed if not name.startswith(ALLOWED)] == []


def test_the_reader_of_needed_libraries_finds_others() -> None:
    """On a file that has another library, such as torch's own module."""
    needed = read_needed(Path(torch._C.__file__).read_bytes())
    assert any(name.startswith("libtorch") for name in needed)
