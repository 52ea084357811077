"""One trial: damage a seed, let gramary read it, and judge what came of it.

Only two things are right: a `GramaryError`, or rows that an independent reader gives too.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch

from gramary import Table
from gramary.errors import GramaryError
from gramary.files.pack import build_pack, verify_pack
from gramary.files.source import find_sources, open_source
from gramary.files.stream import read_rows, stream_rows
from tools.fuzzing import truth as judge
from tools.fuzzing.choices import Choices
from tools.fuzzing.damage import damage, sign_pack, write_files
from tools.fuzzing.seeds import Seed, all_seeds, model_seeds, pack_seed

BUILD_CODECS = ("keep", "bf16", "fp8", "nvfp4")
PLACEMENTS = ("disk", "host=1000B,disk", "host")


class WrongRowsError(AssertionError):
    """A reader did what it must not."""


def try_bytes(data: bytes, folder: Path) -> str:
    """Runs the trial that `data` describes in `folder`, and returns what came of it.

    Returns:
        "right rows", "right rows, truncated while open", "right build", or the name of the
        GramaryError that refused the files.

    Raises:
        WrongRowsError: wrong rows, or files accepted that are wrong.
        BaseException: whatever else a reader let through.
    """
    choices = Choices(data)
    shutil.rmtree(folder, ignore_errors=True)
    if choices.integer(0, 7) == 7:
        return _try_build(choices, folder)
    seed = choices.pick(all_seeds())
    write_files(damage(dict(seed.files), choices), folder)
    try:
        return _read(folder / seed.path, choices)
    except GramaryError as error:
        _require_message(error)
        return type(error).__name__


def _require_message(error: GramaryError) -> None:
    text = str(error)
    if not text.strip() or len(text) > 20000 or "\x1b" in text:
        raise WrongRowsError(f"a message that helps nobody: {text[:200]!r}") from error


def _read(path: Path, choices: Choices) -> str:
    table_index = choices.pick((None, 0, 1))
    if choices.integer(0, 3) == 0:
        find_sources(path)
    is_verified = path.is_file() and choices.integer(0, 1) and _verifies(path)
    source = open_source(path, table_index)
    table = Table.open(path, placement=choices.pick(PLACEMENTS), table_index=table_index)
    with table:
        # Accepted: from here on the judge has to agree.
        true = _judge(path, source.spec.table_index)
        if is_verified and not true.is_good.all():
            raise WrongRowsError("verify passed a pack with an altered block")
        _compare_description(table, true)
        shrunk = choices.integer(0, 7) == 7 and _shrink(source.layout.files, choices)
        _compare_rows(table, true, may_fail=shrunk)
        if not shrunk and true.is_good.all():
            _compare_streams(source.layout, true)
            table.check_integrity()
    return "right rows, truncated while open" if shrunk else "right rows"


def _verifies(path: Path) -> bool:
    try:
        verify_pack(path)
    except GramaryError as error:
        _require_message(error)
        return False
    return True


def _judge(path: Path, index: int) -> judge.Truth:
    try:
        if path.is_dir():
            return judge.read_model(path, index)
        return judge.read_pack(path.read_bytes())
    except Exception as error:
        raise WrongRowsError(f"files were accepted that are wrong: {error!r}") from error


def _compare_description(table: Table, true: judge.Truth) -> None:
    spec = table.spec
    found = judge.Constants(spec.multipliers, spec.sizes, spec.offsets, spec.num_rows)
    pairs = (("constants", found, true.constants), ("codec", table.codec.name, true.codec))
    for what, got, expected in (*pairs, ("scale", table.codec.scale, true.scale)):
        if got != expected:
            raise WrongRowsError(f"{what}: got {got}, expected {expected}")


def _shrink(files: object, choices: Choices) -> bool:
    """Truncates one of the table's files."""
    path = Path(choices.pick(files).path)  # type: ignore[arg-type]
    size = choices.integer(0, path.stat().st_size)
    with open(path, "r+b") as file:
        file.truncate(size)
    return True


def _compare_rows(table: Table, true: judge.Truth, *, may_fail: bool) -> None:
    expected, decoded = torch.from_numpy(true.rows), true.decode()
    ids = torch.arange(len(expected)).flip(0)
    try:
        rows = table.lookup(ids, dtype=torch.uint8)
    except GramaryError as error:
        if true.is_good.all() and not may_fail:
            raise WrongRowsError(f"rows that are right were refused: {error}") from error
        _compare_one_by_one(table, true, may_fail)
        return
    if not true.is_good.all():
        raise WrongRowsError("rows of an altered block were served")
    if not torch.equal(rows, expected.flip(0)):
        raise WrongRowsError(f"row {int((rows != expected.flip(0)).any(1).nonzero()[0])} is wrong")
    try:
        values = table.lookup(ids)
    except GramaryError:
        if not may_fail:
            raise
        return
    same = torch.equal(values.isnan(), decoded.flip(0).isnan())
    if not same or not torch.equal(values.nan_to_num(), decoded.flip(0).nan_to_num()):
        raise WrongRowsError("decoded rows are wrong")


def _compare_one_by_one(table: Table, true: judge.Truth, may_fail: bool) -> None:
    for row in np.linspace(0, len(true.rows) - 1, 9).astype(int).tolist():
        try:
            got = table.lookup(torch.tensor([row]), dtype=torch.uint8)
        except GramaryError as error:
            _require_message(error)
            if true.is_good[row] and not may_fail:
                raise WrongRowsError(f"row {row} is right and was refused") from error
            continue
        if not true.is_good[row] or got.numpy().tobytes() != true.rows[row].tobytes():
            raise WrongRowsError(f"row {row} is wrong")


def _compare_streams(layout: object, true: judge.Truth) -> None:
    expected = torch.from_numpy(true.rows)
    pieces = [rows.clone() for _, rows in stream_rows(layout, 3, len(expected), chunk_bytes=700)]  # type: ignore[arg-type]
    out = torch.empty(5, expected.shape[1], dtype=torch.uint8)
    read_rows(layout, len(expected) - 5, 5, out)  # type: ignore[arg-type]
    if not torch.equal(torch.cat(pieces), expected[3:]) or not torch.equal(out, expected[-5:]):
        raise WrongRowsError("rows read in order are wrong")


def _try_build(choices: Choices, folder: Path) -> str:
    """Builds a pack over what a damaged or half-built one left; it must equal a fresh one."""
    seed: Seed = choices.pick(model_seeds()[:3])
    codec = choices.pick(BUILD_CODECS)
    model, built = folder / "model", folder / "out" / "table.pack"
    (folder / "out").mkdir(parents=True)
    write_files(dict(seed.files), model)
    try:
        source = open_source(model)
        # From these very files: a pack says in which state it found them.
        build_pack(source, folder / "fresh.pack", codec=codec)
        fresh = (folder / "fresh.pack").read_bytes()
        left = choices.pick((fresh, fresh, pack_seed("fp8").files["table.pack"]))
        partial = sign_pack(b"GRAMPART" + left[8:], every_block=False)
        names = choices.pick(
            (("table.pack.partial", partial), ("table.pack", left), ("other", b""))
        )
        files = damage({names[0]: names[1]}, choices)  # type: ignore[dict-item]
        write_files({n: c for n, c in files.items() if n.startswith("table.pack")}, built.parent)
        report = build_pack(source, built, codec=codec)
        if report.outcome == "reused":
            # Its blocks are not looked at before they are read, or verified.
            true = _judge(built, source.spec.table_index)
            if _verifies(built) != true.is_good.all():
                raise WrongRowsError("verify and the judge differ")
        elif built.read_bytes() != judge.finish_pack(files.get("table.pack.partial", b""), fresh):
            raise WrongRowsError(f"a pack that was {report.outcome} differs from a fresh one")
        else:
            verify_pack(built, against=source)
    except GramaryError as error:
        _require_message(error)
        return type(error).__name__
    return f"right build, {report.outcome}"
