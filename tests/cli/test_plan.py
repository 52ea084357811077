"""`gramary plan` says what would go where, and takes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from table_stage import encoded_table, small_spec, write_table_folder

import gramary
from gramary.cli import main

SPEC = small_spec()

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    encoded, codec = encoded_table(SPEC, "fp8")
    return write_table_folder(tmp_path / "model", SPEC, encoded, codec)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("GRAMARY_MEMORY_LIMIT_BYTES", str(1 << 30))

    def run_plan(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["plan", *map(str, words)])
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return run_plan


def test_each_tier_has_a_line_with_rows_bytes_and_reason(run: Run, folder: Path) -> None:
    code, out, err = run(folder, "--placement", "host=10KiB,disk")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert lines[0] == ["host", "320", "rows", "10.0", "KiB", "10.0", "KiB", "asked", "for"]
    assert lines[1][:5] == ["disk", "960", "rows", "30.0", "KiB"]
    assert "memory_limit_bytes 1,073,741,824 B" in out
    assert "table 0, decoder layer 1: fp8, rows 0 to 1,279, 40.0 KiB" in out


@pytest.mark.behaviour(14)
def test_the_command_to_see_it_again_is_told(run: Run, folder: Path) -> None:
    """Behaviour 14: the report ends with the command that shows it again."""
    _, out, _ = run(folder, "--placement", "host=auto,disk")
    assert out.endswith(f"gramary plan {folder} --placement host=auto,disk\n")


def test_the_calls_keep_every_option(run: Run, folder: Path) -> None:
    words = ("--placement", "host", "--kv-gib", "1.5", "--shard", "1/4", "--table-index", "0")
    _, out, _ = run(folder, *words)
    opened, shown = out.splitlines()[-2:]
    call = "placement='host', shard=(1, 4), table_index=0, kv_bytes=1610612736)"
    assert opened == f"open it with: gramary.Table.open({str(folder)!r}, {call}"
    assert shown.endswith("--placement host --kv-gib 1.5 --shard 1/4 --table-index 0")
    with eval(opened.removeprefix("open it with: "), {"gramary": gramary}) as table:
        assert table.placement.num_rows == SPEC.num_rows // 4
    assert run(*shown.removeprefix("see it again: gramary plan ").split())[1] == out


def test_nothing_is_allocated_or_read(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_arguments: object, **_options: object) -> None:
        pytest.fail("a tier was built")

    monkeypatch.setattr("gramary.storage.allocation.build_residency", never)
    monkeypatch.setattr("gramary.storage.allocation.HostTier", never)
    assert run(folder, "--placement", "host")[0] == 0


@pytest.mark.behaviour(36)
def test_what_does_not_fit_is_shown_and_told(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 36: the message says what to do."""
    monkeypatch.setenv("GRAMARY_MEMORY_LIMIT_BYTES", "10000")
    code, out, err = run(folder)
    assert code == 2
    assert "SHORT of 30.2 KiB" in out
    assert "host needs 40,960 bytes" in err
    assert "let disk or another tier take the rest" in " ".join(err.split())


def test_a_rank_plans_its_own_part(run: Run, folder: Path) -> None:
    _, out, _ = run(folder, "--shard", "3/4")
    assert "rows 960 to 1,279, 10.0 KiB" in out
    _, out, _ = run(folder, "--shard", "1/2", "--shard-by", "heads")
    assert "rows 618 to 1,279" in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [(("--shard", "4"), "expected RANK/SIZE"), (("--shard", "4/4"), "0 <= rank < size"),
     (("--placement", "ssd"), "placement: expected device, host or disk"),
     (("--placement", "host=1"), "without a place"), (("--table-index", "3"), "table_index")],
)  # fmt: skip
def test_mistakes_are_one_paragraph(
    run: Run, folder: Path, words: tuple[str, ...], problem: str
) -> None:
    code, _, err = run(folder, *words)
    assert code == 2
    assert problem in err
    assert "Traceback" not in err


def test_tables_share_what_is_free(
    run: Run, make_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint(codec="fp8", ple_layer_ids=(2, 3))
    monkeypatch.setenv("GRAMARY_MEMORY_LIMIT_BYTES", str(900_000))
    code, out, _ = run(folder, "--placement", "host=auto,disk")
    assert code == 0
    hosts = [line.split() for line in out.splitlines() if line.startswith("  host")]
    assert hosts[0][1] == "18,688"
    assert int(hosts[1][1].replace(",", "")) < 9500


@pytest.mark.parametrize("gib", ["inf", "nan", "-1", "1e300"])
def test_caches_of_no_size_are_refused(run: Run, folder: Path, gib: str) -> None:
    code, _, err = run(folder, "--placement", "host", "--kv-gib", gib)
    assert code == 2
    assert "--kv-gib" in err
