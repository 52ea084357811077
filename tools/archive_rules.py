"""What an archive of a release has to be: its names, its tag, and what its core needs to load.

Everything here only reads; `tools/make_wheel.py` makes the archives and asks these functions.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

GLIBC = (2, 28)  # the oldest C library that a wheel loads on: that of manylinux_2_28
ENTRY = "PyInit__core"
SYSTEM_LIBRARIES = re.compile(r"(?:lib(?:c|m|dl|rt|pthread)|ld-linux-[\w-]+)\.so\.\d+")

# The whole source archive: what the build reads, and the words that come with it.
SOURCE_FILES = {"CHANGELOG.md", "CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md"}
SOURCE_FILES |= {"pyproject.toml"}
SOURCE_FOLDERS = {"csrc", "src"}
PACKAGE_SUFFIXES = {".py", ".pyi", ".typed"}


@dataclass(frozen=True)
class Needs:
    """What a shared library asks of the process that loads it, and what it shows to it."""

    libraries: frozenset[str]
    versions: frozenset[str]  # of symbols: GLIBC_2.17, CXXABI_1.3, ...
    exports: frozenset[str]
    machine: str  # as in a wheel's tag: x86_64, aarch64


def read_needs(library: bytes) -> Needs:
    """Returns the needs of an ELF file; ELFError for any other file."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection
    from elftools.elf.sections import SymbolTableSection

    elf = ELFFile(io.BytesIO(library))
    libraries: set[str] = set()
    versions: set[str] = set()
    exports: set[str] = set()
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            libraries |= {tag.needed for tag in section.iter_tags("DT_NEEDED")}
        elif isinstance(section, GNUVerNeedSection):
            versions |= {one.name for _, many in section.iter_versions() for one in many}
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            exports |= {
                symbol.name
                for symbol in section.iter_symbols()
                if symbol["st_shndx"] != "SHN_UNDEF" and symbol.name
            }
    machine = {"x64": "x86_64", "AArch64": "aarch64"}.get(elf.get_machine_arch(), "unknown")
    return Needs(frozenset(libraries), frozenset(versions), frozenset(exports), machine)


def faults_of_core(needs: Needs, machine: str) -> Iterator[str]:
    """Yields what keeps a core from loading wherever a wheel for `machine` may be installed."""
    if needs.machine != machine:
        yield f"the core is built for {needs.machine}, expected {machine}"
    for library in sorted(needs.libraries):
        if not SYSTEM_LIBRARIES.fullmatch(library):
            yield f"the core needs {library}, expected the C library's own files only"
    for version in sorted(needs.versions):
        found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
        if found is None or (int(found[1]), int(found[2])) > GLIBC:
            yield f"the core needs {version}, expected at most GLIBC_{GLIBC[0]}.{GLIBC[1]}"
    if needs.exports != {ENTRY}:
        others = ", ".join(sorted(needs.exports - {ENTRY})) or "nothing"
        yield f"the core exports {others}, expected {ENTRY} alone"


def faults_of_wheel(path: Path, tag: str, package: Iterable[str]) -> Iterator[str]:
    """Yields what is wrong with a wheel.

    Args:
        path: the wheel.
        tag: what its name has to end with, such as `cp312-abi3-manylinux_2_28_x86_64`.
        package: the package's files as the tree has them (`gramary/table.py`), without the core.
    """
    if not path.stem.endswith(f"-{tag}"):
        yield f"the name is {path.name}, expected one that ends in -{tag}.whl"
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        cores = sorted(name for name in names if name.endswith(".so"))
        yield from _faults_of_names(names - set(cores), set(package))
        if len(cores) != 1 or not re.fullmatch(core_pattern(tag), cores[0]):
            yield f"the cores are {cores}, expected one that matches {core_pattern(tag)}"
        for core in cores:
            yield from faults_of_core(read_needs(wheel.read(core)), machine_of(tag))


def core_pattern(tag: str) -> str:
    """Returns the pattern of the core's name in a wheel of this tag."""
    python, abi, _ = tag.split("-", maxsplit=2)
    if abi == "abi3":
        return r"gramary/native/_core\.abi3\.so"
    return rf"gramary/native/_core\.cpython-{python[2:]}-{machine_of(tag)}-linux-gnu\.so"


def machine_of(tag: str) -> str:
    """Returns the machine of a tag: `x86_64` of `cp311-cp311-manylinux_2_28_x86_64`."""
    return re.sub(r".*manylinux_\d+_\d+_", "", tag)


def _faults_of_names(names: set[str], package: set[str]) -> Iterator[str]:
    about = {name for name in names if re.match(r"gramary-[^/]+\.dist-info/", name)}
    for name in sorted(names - about - package):
        yield f"{name} does not belong into a wheel"
    for name in sorted(package - names):
        yield f"{name} is missing"


def list_package(root: Path) -> list[str]:
    """Returns the files of the package in a tree, as a wheel names them."""
    source = root / "src"
    return sorted(
        path.relative_to(source).as_posix()
        for path in (source / "gramary").rglob("*")
        if path.suffix in PACKAGE_SUFFIXES
    )


def faults_of_sdist(path: Path, package: Sequence[str], native: Sequence[str]) -> Iterator[str]:
    """Yields what is wrong with a source archive; `native` names the files of csrc/."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()} - {""}
    for name in sorted(names):
        first, _, rest = name.partition("/")
        if not (first in SOURCE_FOLDERS if rest else first in SOURCE_FILES | SOURCE_FOLDERS):
            yield f"{name} does not belong into the source archive"
        elif name.endswith(".so"):
            yield f"{name} is built, expected sources only"
    expected = {f"src/{name}" for name in package} | set(native) | SOURCE_FILES
    for name in sorted(expected - names):
        yield f"{name} is missing"
