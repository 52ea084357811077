"""Files and folders that are not what their names say: each is named as what it is."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gramary.errors import CheckpointError, ConfigError, GramaryError, PackError, TableNotFoundError
from gramary.files.checkpoint import open_checkpoint
from gramary.files.pack import build_pack, open_pack, verify_pack
from gramary.files.source import find_sources, open_source
from gramary.model.config import read_config
from gramary.model.foreign_files import HEAD_BYTES, recognise

INDEX = "model.safetensors.index.json"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 11471212\n"

# What it holds, and what the message must say that it is and ask for.
CONTENTS = {
    "lfs": (LFS, "a Git LFS pointer to a file of 11471212 bytes", "git lfs pull"),
    "old lfs": (b"version https://hawser.github.com/spec/v1\n", "a Git LFS pointer", "git-lfs"),
    "xet": (b"# xet version 0\nfilesize = 7\n", "a Xet pointer", "hf download"),
    "annex": (b"/annex/objects/SHA256E-s7--00.safetensors\n", "a git-annex pointer", "annex get"),
    "html": (b"\n<!DOCTYPE html><html>403</html>", "an HTML page", "log-in"),
    "old html": (b"<HTML><HEAD>Moved</HEAD></HTML>", "an HTML page", "download the file again"),
    "xml": (b'<?xml version="1.0"?><Error/>', "an XML document", "download the file again"),
    "json": (b'{ "error": "Repository not found" }', "an error message of a server", "address"),
    "words": (b"Invalid username or password.", "begins with 'Invalid username", "log-in"),
    "empty": (b"", "an empty file", "download the file again"),
    "zeros": (bytes(5000), "nothing but zeros", "did not end"),
    "zip": (b"PK\x03\x04" + bytes(100), "a zip archive", "safetensors"),
    "pickle": (b"\x80\x02}q\x00." + bytes(100), "a pickle", "safetensors"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(100), "a GGUF file", "safetensors"),
    "gzip": (b"\x1f\x8b\x08\0" + bytes(100), "a gzip archive", "unpack it"),
}
# Where such a file may stand, and the error it gives there.
PLACES = {
    "model.safetensors": CheckpointError,
    "a part": CheckpointError,
    INDEX: CheckpointError,
    "config.json": ConfigError,
    "pack": PackError,
}


def put(folder: Path, place: str, content: bytes) -> Path:
    """Puts a file of the content in a place of a copied model; returns what is opened then."""
    if place == "pack":
        path = folder / "table.pack"
        path.write_bytes(content)
        return path
    parts = sorted(folder.glob("model-*.safetensors"))
    name = parts[0].name if place == "a part" else place
    (folder / name).write_bytes(content)
    return folder


@pytest.mark.behaviour(36)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", CONTENTS)
def test_kind_10_each_is_named_as_what_it_is(
    copy_checkpoint: Callable[..., Path], kind: str, place: str
) -> None:
    """Kind 10, behaviour 36: and what to do instead of downloading the same again."""
    content, what, remedy = CONTENTS[kind]
    is_split = place in ("a part", INDEX)
    folder = copy_checkpoint(**({"max_file_bytes": 150_000} if is_split else {}))
    with pytest.raises(PLACES[place]) as caught:
        open_source(put(folder, place, content))
    message = str(caught.value)
    for word in (what, remedy):
        assert word in message
    assert message.startswith(str(folder))
    assert len(message) < 600


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("num_bytes", [9, 100, HEAD_BYTES, HEAD_BYTES + 1])
def test_kind_10_no_part_of_a_head_is_too_short(kind: str, num_bytes: int) -> None:
    """Kind 10: files of any length are looked at, and none brings the look itself down."""
    head = CONTENTS[kind][0][:num_bytes]
    found = recognise(head, len(head))
    assert found is None or found.isprintable()


@pytest.mark.parametrize("content", [b"\xff" * 40, bytes(range(1, 200)), b"{}", b"[1, 2]"])
def test_what_is_unknown_is_not_guessed(content: bytes) -> None:
    assert recognise(content, len(content)) is None


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("num_bytes", [100, 700, 200_000])
def test_kind_10_a_cut_download_is_named_as_that(
    copy_checkpoint: Callable[..., Path], num_bytes: int
) -> None:
    """Kind 10: in its header or in the table's tensors, with the bytes that are there."""
    path = copy_checkpoint(codec="bf16") / "model.safetensors"
    os.truncate(path, num_bytes)
    with pytest.raises(CheckpointError, match="is cut off") as caught:
        open_checkpoint(path.parent)
    assert "download it again" in str(caught.value)
    assert str(path.stat().st_size) in str(caught.value)


@pytest.mark.parametrize("num_bytes", [20, 4096, -1])
def test_kind_10_a_cut_pack_is_named_as_that(
    make_checkpoint: Callable[..., Path], tmp_path: Path, num_bytes: int
) -> None:
    """Kind 10: a pack that was copied half."""
    path = tmp_path / "table.pack"
    build_pack(open_source(make_checkpoint(codec="bf16")), path)
    os.truncate(path, num_bytes if num_bytes > 0 else path.stat().st_size + num_bytes)
    for open_it in (open_pack, verify_pack):
        with pytest.raises(PackError, match="is truncated"):
            open_it(path)


def test_kind_10_a_file_of_the_checkpoint_is_no_pack(make_checkpoint: Callable[..., Path]) -> None:
    """Kind 10: the folder is what is to be given."""
    with pytest.raises(PackError, match=r"a safetensors file; give the model's folder"):
        open_source(make_checkpoint() / "model.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", INDEX])
def test_kind_10_a_link_without_its_file(copy_checkpoint: Callable[..., Path], name: str) -> None:
    """Kind 10: a snapshot that was copied without the blobs its links lead to."""
    folder = copy_checkpoint(**({"max_file_bytes": 150_000} if name == INDEX else {}))
    (folder / name).unlink()
    (folder / name).symlink_to("../../blobs/0123")
    with pytest.raises(GramaryError, match=r"a link to '../../blobs/0123', which is not there"):
        open_checkpoint(folder)


@pytest.fixture
def hub(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A hub's cache with two snapshots of a model, of which `main` is the second by name."""
    repository = tmp_path / "hub" / "models--org--name"
    for revision in ("0" * 40, "1" * 40):
        shutil.copytree(make_checkpoint(), repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1" * 40)
    (repository / "blobs").mkdir()
    return repository.parent


@pytest.mark.behaviour(36)
@pytest.mark.parametrize("opens", [open_source, find_sources, open_checkpoint, read_config])
@pytest.mark.parametrize(
    ("below", "what"),
    [
        ("", "a hub's cache"),
        ("models--org--name", "a model's repository in a hub's cache"),
        ("models--org--name/snapshots", "the snapshots of a model"),
    ],
)
def test_kind_10_a_folder_above_a_snapshot_names_the_snapshot(
    hub: Path, below: str, what: str, opens: Callable[[Path], object]
) -> None:
    """Kind 10, behaviour 36: the one that `main` stands for, where that is known."""
    with pytest.raises((TableNotFoundError, ConfigError)) as caught:
        opens(hub / below)
    assert what in str(caught.value)
    snapshots = hub / "models--org--name" / "snapshots"
    named = snapshots / ("0" * 40 if below.endswith("snapshots") else "1" * 40)
    assert f"give {named}" in str(caught.value)
    open_source(named)


def test_kind_10_folders_without_a_whole_model(hub: Path, tmp_path: Path) -> None:
    """Kind 10: nothing is advised that does not help."""
    shutil.rmtree(hub / "models--org--name" / "snapshots")
    (hub / "models--org--name" / "snapshots").mkdir()
    with pytest.raises(TableNotFoundError, match="no snapshot below it holds a model; download"):
        open_source(hub / "models--org--name")
    unfinished = tmp_path / "local" / ".cache" / "huggingface" / "download"
    unfinished.mkdir(parents=True)
    (unfinished / "x.incomplete").touch()
    with pytest.raises(TableNotFoundError, match=r"a download that did not end \(x\.incomplete"):
        open_source(tmp_path / "local")
    (tmp_path / "none").mkdir()
    with pytest.raises(TableNotFoundError, match="found none"):
        open_source(tmp_path / "none")


def test_kind_10_a_folder_above_a_model(copy_checkpoint: Callable[..., Path]) -> None:
    """Kind 10: as a download into a folder of its own leaves it."""
    folder = copy_checkpoint()
    with pytest.raises(TableNotFoundError, match=rf"above a model's; give {folder}"):
        open_source(folder.parent)
