"""Kind 24: whatever the words of a command, what is wrong with them is said in words.

Each row of the tables is a command line that once ended in "unexpected ...Error", hung, or wrote
control characters to the terminal, or a sibling of one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import run_command

from gramary import Table
from gramary.errors import RowReadError

MODEL = "MODEL"  # stands for the folder of a model
PACK = "PACK"
GENERATE = ("generate", "--model", MODEL, "--prompt")

# What no path of a model or a pack is, by name; `Site` has those that have to be made.
NO_PATHS = [
    "", "/", "/dev/null", "/dev/zero", "/dev/full", "nul\0", "\ud800", "\udcff", "x" * 300,
    "x/" * 3000, "~", "/proc/self/mem", "/sys/kernel", "a\nb\x1b[2J", "é\u202e",
    "empty", "empty file", "junk", "fifo", "loop", "red\x1b[31m", "config list", "config cut",
    "config folder", "config fifo", "config not utf-8", "config deep", "unreadable",
]  # fmt: skip
NUMBERS = [
    "nan", "-nan", "inf", "-inf", "1e400", "-1", "9" * 5000, "", "0x10", "½", "²", "\0", "\ud800",
    "18446744073709551616", "-9223372036854775809",
]  # fmt: skip
NAMES = ["", "none", "\0", "\ud800", "\udcff", "a\nb", "x" * 5000, "²", "cuda:" + "9" * 400, "meta"]


class Site:
    """A folder of things that are no model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "empty").mkdir()
        (folder / "empty file").touch()
        (folder / "junk").write_bytes(bytes(range(256)) * 64)
        os.mkfifo(folder / "fifo")
        (folder / "loop").symlink_to("loop")
        (folder / "red\x1b[31m").mkdir()
        for name, content in (
            ("list", b"[1, 2]"), ("cut", b'{"a":'), ("not utf-8", b"\xff\xfe"),
            ("deep", b"[" * 100_000),
        ):  # fmt: skip
            (folder / f"config {name}").mkdir()
            (folder / f"config {name}" / "config.json").write_bytes(content)
        (folder / "config folder" / "config.json").mkdir(parents=True)
        (folder / "config fifo").mkdir()
        os.mkfifo(folder / "config fifo" / "config.json")
        (folder / "unreadable").mkdir()
        (folder / "unreadable" / "config.json").write_bytes(b"{}")
        (folder / "unreadable" / "config.json").chmod(0)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def files(
    make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The model and the pack that the tables name."""
    model = make_checkpoint(codec="fp8")
    pack = tmp_path_factory.mktemp("packs") / "table.pack"
    assert run_command("pack", model, pack) == 0
    return {MODEL: str(model), PACK: str(pack)}


@pytest.fixture
def refuse(
    site: Site,
    files: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Runs a command among them, which is to be refused in words; returns what it said."""
    monkeypatch.chdir(site.folder)

    def run(*words: str, codes: tuple[int, ...] = (2,)) -> str:
        capsys.readouterr()
        code = run_command(*(files.get(word, word) for word in words))
        said = capsys.readouterr()
        assert code in codes, said.err
        require_words(said.out + said.err)
        if code == 2:
            assert said.err.strip()
            # Usage errors are typer's, with a line of usage.
            assert said.err.startswith(("gramary: ", "Usage: "))
        return said.err

    return run


def require_words(said: str) -> None:
    """What may go to a terminal: text without a traceback and without control characters."""
    assert "gramary: unexpected" not in said
    assert "Traceback" not in said
    assert all(character.isprintable() or character in "\n\t\u202e" for character in said)
    said.encode()


@pytest.mark.parametrize("path", NO_PATHS, ids=range(len(NO_PATHS)))
def test_kind_24_a_path_that_leads_to_no_model(refuse: Callable[..., str], path: str) -> None:
    for words in (
        ("inspect", path), ("plan", path), ("pack", path, "out.pack"), ("verify", path),
        ("verify", PACK, "--against", path), ("generate", "--model", path, "--prompt", "x"),
    ):  # fmt: skip
        refuse(*words)
    # Any file can be tried for direct reads.
    refuse("doctor", "--model", path, codes=(0, 2))


def test_kind_24_a_folder_without_a_file_is_named_by_the_doctor(
    refuse: Callable[..., str],
) -> None:
    for path in ("empty", "config folder", "/dev/null", "fifo"):
        said = refuse("doctor", "--model", path)
        assert "--model" in said
        assert "holds no file to read; check the name, or download the model first" in said


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
@pytest.mark.parametrize(("command", "option"), [
    (("plan", MODEL, "--placement", "disk"), "--kv-gib"),
    (("plan", MODEL, "--placement", "disk"), "--table-index"),
    (("pack", MODEL, "out.pack"), "--table-index"),
    ((*GENERATE, "x"), "--max-new-tokens"),
    ((*GENERATE, "x"), "--prefill-chunk-size"),
    ((*GENERATE, "x"), "--temperature"),
    ((*GENERATE, "x"), "--seed"),
], ids=["kv", "layer", "pack", "tokens", "chunk", "temperature", "seed"])  # fmt: skip
def test_kind_24_a_number_that_means_nothing(
    refuse: Callable[..., str], command: tuple[str, ...], option: str, number: str
) -> None:
    if (option, number) in (("--seed", "-1"), ("--temperature", "18446744073709551616")):
        pytest.skip("it means something there")
    assert option in refuse(*command, f"{option}={number}") or option == "--table-index"


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
@pytest.mark.parametrize(("command", "option"), [
    (("plan", MODEL), "--placement"),
    (("plan", MODEL), "--device"),
    (("plan", MODEL), "--shard"),
    (("plan", MODEL), "--shard-by"),
    (("pack", MODEL, "out.pack"), "--codec"),
    ((*GENERATE, "x"), "--placement"),
    ((*GENERATE, "x"), "--device"),
    ((*GENERATE, "x"), "--compare"),
    (("bench", "--tree", "empty"), "--against"),
    (("bench", "--tree", "empty"), "--plot"),
])  # fmt: skip
def test_kind_24_a_name_that_is_no_choice(
    refuse: Callable[..., str], command: tuple[str, ...], option: str, name: str
) -> None:
    refuse(*command, f"{option}={name}")


@pytest.mark.parametrize("placement", [
    "host=nan", "host=-1GiB", "host=1e999GiB,disk", "host=infGiB", f"host={'9' * 5000}GiB,disk",
    "disk,disk", "host=,disk", ",", "host=0.1B", "host=٣,disk", "device=device", "\x1b[31m",
])  # fmt: skip
def test_kind_24_a_placement_of_no_size(refuse: Callable[..., str], placement: str) -> None:
    refuse("plan", MODEL, "--placement", placement)


@pytest.mark.parametrize("shard", ["0/0", "1/1", "-1/2", "0/" + "9" * 5000, "²/³", "/", "0/1/2"])
def test_kind_24_a_shard_that_is_no_part(refuse: Callable[..., str], shard: str) -> None:
    refuse("plan", MODEL, "--shard", shard)


@pytest.mark.parametrize("prompt", ["", "a\udcff"])
def test_kind_24_a_prompt_without_a_token(refuse: Callable[..., str], prompt: str) -> None:
    said = refuse(*GENERATE, prompt, "--placement", "disk", "--device", "cpu")
    assert said.startswith("gramary: --prompt: expected text")


@pytest.mark.parametrize("out", [
    "", "/", ".", "/dev/null", "/dev/full", "fifo", "loop", "nul\0", "\ud800", "x" * 300,
    "no folder/x", "/proc/x", "/sys/x", "empty", "junk", "a\nb\x1b/c",
], ids=range(16))  # fmt: skip
def test_kind_24_a_pack_where_none_can_be(refuse: Callable[..., str], out: str) -> None:
    refuse("pack", MODEL, out)


def test_kind_24_no_control_characters_of_a_path_reach_the_terminal(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where nothing is wrong with it."""
    folder = tmp_path / "a\x1b[31m\nb\udcff\x9b"
    folder.symlink_to(files[MODEL])
    pack = tmp_path / "\x07\x1b]0;title\x07.pack"
    for words in (
        ("pack", folder, pack), ("verify", pack, "--against", folder), ("inspect", folder),
        ("inspect", pack, "--json"), ("plan", folder), ("doctor", "--model", folder),
    ):  # fmt: skip
        assert run_command(*words) == 0
        said = capsys.readouterr()
        require_words(said.out + said.err)
    for words in (
        ("plan", pack, "--device", "\x1b"), ("verify", pack.with_suffix(".gone")),
        ("generate", "--model", folder, "--prompt", "x"),
    ):  # fmt: skip
        assert run_command(*words) == 2
        require_words(capsys.readouterr().err)


def test_kind_24_rows_are_read_from_a_path_that_is_no_text(
    files: dict[str, str], tmp_path: Path
) -> None:
    """The core takes and names the bytes of a path that is not UTF-8."""
    pack = tmp_path / "table\udcff.pack"
    assert run_command("pack", files[MODEL], pack) == 0
    with Table.open(pack, placement="disk") as table:
        assert table.lookup(torch.tensor([1])).shape[0] == 1
        pack.write_bytes(b"")
        with pytest.raises(RowReadError) as caught:
            table.lookup(torch.tensor([100]))
    assert caught.value.file == str(pack)


def test_kind_24_words_in_any_order_are_refused_in_words(refuse: Callable[..., str]) -> None:
    """What the tables do not have: options of one command with each other's values."""
    random_words = random.Random(24)
    values = [*NO_PATHS, *NUMBERS, *NAMES, MODEL, PACK, "disk", "0/1", "1"]
    options = {
        "inspect": ["--json"],
        "plan": ["--placement", "--device", "--kv-gib", "--shard", "--shard-by", "--table-index"],
        "pack": ["--codec", "--table-index"],
        "verify": ["--against"],
    }
    for _ in range(150):
        command = random_words.choice(list(options))
        words = [command, random_words.choice((MODEL, PACK, *values))]
        words += [random_words.choice(NO_PATHS[8:])] if command == "pack" else []
        for option in options[command]:
            if random_words.random() < 0.4:
                words.append(option)
                words += [] if option == "--json" else [random_words.choice(values)]
        refuse(*words, codes=(0, 2))
