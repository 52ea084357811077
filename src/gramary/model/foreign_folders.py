"""What a folder without a model really is: a hub's cache, or a folder above a model's."""

from __future__ import annotations

import os
from pathlib import Path

_REPOSITORY = "models--"
# Enough to find a model in a folder of models, few enough for a folder of anything.
_MAX_LOOKED_AT = 1000
_UNFINISHED = (".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".download")


def recognise_folder(folder: str | os.PathLike[str]) -> str | None:
    """Returns what a folder without a model is and what to do, or None where that is unknown.

    Source: the layout of the hub's cache as https://huggingface.co/docs/huggingface_hub describes
    it: `models--ORG--NAME/snapshots/REVISION`, and `refs/BRANCH` with a revision in it.
    """
    folder = Path(folder)
    names = _names(folder)
    if "snapshots" in names and (folder / "snapshots").is_dir():
        return _describe_repository(folder)
    if any(name.startswith(_REPOSITORY) for name in names):
        repositories = [folder / name for name in names if name.startswith(_REPOSITORY)]
        return (
            f"a hub's cache, in which models lie deeper; give {_one_of(_snapshots(repositories))}"
        )
    below = [folder / name for name in names if _has_model(folder / name)]
    if folder.name == "snapshots" and below:
        return f"the snapshots of a model in a hub's cache; give {_one_of(below)}"
    if below:
        return f"a folder above a model's; give {_one_of(below)}"
    unfinished = [name for name in names if name.endswith(_UNFINISHED)]
    unfinished += _names(folder / ".cache" / "huggingface" / "download", *_UNFINISHED)
    if unfinished:
        return (
            f"a download that did not end ({_shown(unfinished[0])} is left of it); start the "
            f"download again: it goes on"
        )
    return None


def _describe_repository(folder: Path) -> str:
    what = "the folder of a model's repository in a hub's cache, not a snapshot of the model"
    snapshots = _snapshots([folder])
    if not snapshots:
        return f"{what}, and no snapshot below it holds a model; download the model again"
    return f"{what}; give {_one_of(snapshots)}"


def _snapshots(repositories: list[Path]) -> list[Path]:
    """Returns the snapshots that hold a model; the one that `main` stands for first, of each."""
    found = []
    for repository in repositories:
        folder = repository / "snapshots"
        revisions = [name for name in _names(folder) if _has_model(folder / name)]
        try:
            main = (repository / "refs" / "main").read_bytes()[:100].decode().strip()
        except (OSError, ValueError):
            main = ""
        found += [folder / name for name in sorted(revisions, key=lambda name: name != main)]
    return found


def _has_model(folder: Path) -> bool:
    return bool(_names(folder, ".safetensors")) or (folder / "config.json").is_file()


def _names(folder: Path, *endings: str) -> list[str]:
    """Returns the names in a folder, sorted; none where it is no folder that can be read."""
    try:
        names = sorted(os.listdir(folder))[:_MAX_LOOKED_AT]
    except OSError:
        return []
    return [name for name in names if not endings or name.endswith(endings)]


def _one_of(folders: list[Path]) -> str:
    if not folders:
        return "the snapshot of a model that is whole: none here is"
    others = f" (of {len(folders)} there)" if len(folders) > 1 else ""
    return f"{_shown(folders[0])}{others}"


def _shown(path: str | Path) -> str:
    text = str(path)
    return text if text.isprintable() else repr(text)
