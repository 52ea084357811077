"""`__init__.py` is the contract: what a package exports is what its `__all__` says."""

import importlib
import inspect
from pathlib import Path

import pytest

import gramary
from gramary.cli.app import COMMANDS

PACKAGE = Path(gramary.__file__).parent
PACKAGES = sorted(
    ".".join(("gramary", *path.parent.relative_to(PACKAGE).parts))
    for path in PACKAGE.rglob("__init__.py")
)


@pytest.mark.parametrize("name", PACKAGES)
def test_exported_names_are_those_of_all(name: str) -> None:
    package = importlib.import_module(name)
    exported = set(getattr(package, "__all__", ()))
    # The root package imports a name when it is asked for.
    missing = [member for member in exported if not hasattr(package, member)]
    assert not missing, f"{name} lacks {missing}"
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


# Names that users and other engines rely on; they stay.
FIXED_NAMES = {
    "gramary": "HashSpec ngram_ids Table plan_placement ple SlotPool Batch Connector PLELayer "
    "errors",
    "gramary.errors": "GramaryError",
    "gramary.HashSpec": "from_config",
    "gramary.Table": "open empty load_shard materialize finish_loading lookup embed placement "
    "stats check check_integrity close",
    "gramary.ple": "Caps plan bind run export_checkpoint ExportStatus to_chronological "
    "from_chronological",
    "gramary.SlotPool": "acquire release fork restore commit check_integrity",
    "gramary.Connector": "request wait cancel release_outputs check stats close",
    "gramary.integrations.transformers": "load",
}
FIXED_COMMANDS = ("inspect", "plan", "pack", "verify", "prune", "generate", "bench", "doctor")


@pytest.mark.parametrize("owner", FIXED_NAMES)
def test_fixed_names_exist(owner: str) -> None:
    importlib.import_module("gramary.integrations.transformers")
    found = gramary
    for name in owner.split(".")[1:]:
        found = getattr(found, name)
    missing = [name for name in FIXED_NAMES[owner].split() if not hasattr(found, name)]
    assert not missing, f"{owner} lacks {missing}"


def test_fixed_commands_exist() -> None:
    assert set(FIXED_COMMANDS) <= set(COMMANDS)


def test_the_version_is_that_of_the_metadata() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("gramary")
    except PackageNotFoundError:
        pytest.skip("gramary is on the path, not installed")
    assert gramary.__version__ == installed
