"""`__init__.py` is the contract: what a package exports is what its `__all__` says."""

import importlib
import inspect
from pathlib import Path

import pytest

import gramary

PACKAGE = Path(gramary.__file__).parent
PACKAGES = sorted(
    ".".join(("gramary", *path.parent.relative_to(PACKAGE).parts))
    for path in PACKAGE.rglob("__init__.py")
)


@pytest.mark.parametrize("name", PACKAGES)
def test_exported_names_are_those_of_all(name: str) -> None:
    package = importlib.import_module(name)
    exported = set(getattr(package, "__all__", ()))
    public = {
        member
        for member, value in vars(package).items()
        # A submodule appears in its package by being imported; __all__ may still name it.
        if not member.startswith("_") and (not inspect.ismodule(value) or member in exported)
    }
    # `from __future__ import annotations` leaves its feature object behind.
    public.discard("annotations")
    assert public | {"__version__"} & exported == exported
    assert sorted(exported) == sorted(set(exported))


def test_the_version_is_that_of_the_metadata() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("gramary")
    except PackageNotFoundError:
        pytest.skip("gramary is on the path, not installed")
    assert gramary.__version__ == installed
