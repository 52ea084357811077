"""The words for transformers' `from_pretrained` that no table could follow, refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gramary.errors import ArgumentError


def _is_given(value: object) -> bool:
    return value is not None


def _is_true(value: object) -> bool:
    return bool(value)


def _is_false(value: object) -> bool:
    return value is False


def _is_another_revision(value: object) -> bool:
    return value not in (None, "main")


# By name: which values are refused, and why.
_REFUSED: dict[str, tuple[Callable[[object], bool], str]] = {
    "state_dict": (_is_given, "weights are read from the folder; leave it out"),
    "gguf_file": (
        _is_given,
        "rows are read from safetensors files, and the weights have to come from the same; leave "
        "it out",
    ),
    "use_safetensors": (
        _is_false,
        "rows are read from safetensors files, and the weights have to come from the same; leave "
        "it out",
    ),
    "revision": (
        _is_another_revision,
        "a folder holds one revision; download the other one with `hf download NAME --revision "
        "REVISION`, which prints its folder, and load that",
    ),
    "disable_mmap": (
        _is_true,
        "would read every file, the table's too, into memory; leave it out",
    ),
}


def refuse_options(options: Mapping[str, Any]) -> None:
    """Raises ArgumentError for a word of `from_pretrained` that cannot be honoured."""
    for name, (is_refused, reason) in _REFUSED.items():
        if name in options and is_refused(options[name]):
            raise ArgumentError(f"{name}: {reason}")


def require_folder(path: str | os.PathLike[str], subfolder: str = "") -> Path:
    """Returns the folder that holds a model's files.

    Raises:
        ArgumentError: there is none, or it holds an adapter without its model.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ArgumentError(
            f"path: expected a model's folder, got {os.fspath(path)!r}; a model on the hub is "
            "downloaded first: `hf download NAME` prints its folder"
        )
    if not (folder / subfolder).is_dir():
        raise ArgumentError(f"subfolder: expected a folder inside {folder}, got {subfolder!r}")
    folder = folder / subfolder
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise ArgumentError(
            f"path: expected a model's folder, got {folder}, which holds an adapter alone; load "
            "its model, and then model.load_adapter(path)"
        )
    return folder


__all__ = ["refuse_options", "require_folder"]
