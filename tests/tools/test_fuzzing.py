"""The reader fuzzers' own parts, and every kind of damage that they know, by Hypothesis."""

import os
from pathlib import Path

import numpy as np
import pytest
from children import run_apart
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from receipt_stage import make_run

from benchmarks.receipts import schema as receipts
from tools import fuzz_readers
from tools.fuzzing import seeds, truth, verdict

# The layer asked for, no verifying, and a placement: what follows the damage in a trial.
NO_DAMAGE = 0


@pytest.mark.parametrize("placement", range(len(verdict.PLACEMENTS)))
@pytest.mark.parametrize("index", range(10))
def test_what_is_right_is_read_at_every_placement(
    index: int, placement: int, tmp_path: Path
) -> None:
    data = bytes([0, index, NO_DAMAGE, 1, 1, 1, placement])
    assert verdict.try_bytes(data, tmp_path / "trial") == "right rows"


@pytest.mark.parametrize("codec", range(len(verdict.BUILD_CODECS)))
def test_a_half_built_pack_is_taken_up(codec: int, tmp_path: Path) -> None:
    data = bytes([7, 0, codec, 0, 0, NO_DAMAGE])
    assert verdict.try_bytes(data, tmp_path / "trial") == "right build, resumed"


@pytest.mark.behaviour(16, 29, 32)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(min_size=8, max_size=120))
def test_damaged_files_are_refused_or_read_right(data: bytes, tmp_path: Path) -> None:
    verdict.try_bytes(data, tmp_path / "trial")


# Inputs that once ended in something else than a GramaryError or right rows.
FOUND = {
    "an index that is a pipe": "8d299e108f14e4929c3bfa2d109475416fe98b0bf8a1f0f3ae8323d3bb243825"
    "215a5ad9c7a08703ae10c9b7c7b1efc183205cd0f5b1c4ca11ec200f177c8797aaece28dd63a37",
    "a pack whose name is a link to itself": "cf445448430e69ac7c9693275c03a6ae1ef4a50195e63cd0"
    "ceb637fb2857",
    "a half-built pack with a block that was altered and signed": "fffd01fcabcf6e09093109f8fefee6"
    "00090b09090909090909090946385f45344d33",
    "a folder of a file's name": "11fd01012106",
}


@pytest.mark.parametrize("name", FOUND)
def test_what_fuzzing_found_stays_mended(name: str, tmp_path: Path) -> None:
    seeds.all_seeds()
    descriptors = len(os.listdir("/proc/self/fd"))
    verdict.try_bytes(bytes.fromhex(FOUND[name]), tmp_path / "trial")
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_judge_notices_a_wrong_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = truth.read_model

    def read_wrongly(folder: Path, index: int) -> truth.Truth:
        true = read(folder, index)
        true.rows[-1, 0] ^= 1
        return true

    monkeypatch.setattr(truth, "read_model", read_wrongly)
    with pytest.raises(verdict.WrongRowsError, match="row"):
        verdict.try_bytes(bytes([0, 0, NO_DAMAGE, 1, 1, 1, 0]), tmp_path / "trial")


def test_the_judge_marks_rows_of_altered_blocks() -> None:
    data = bytearray(seeds.pack_seed("fp8").files["table.pack"])
    data[4096 + 5] ^= 1
    true = truth.read_pack(bytes(data))
    assert np.flatnonzero(~true.is_good).tolist() == list(range(255))


def test_the_receipt_says_how_to_run_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, asked = tmp_path / "fuzz.json", []
    monkeypatch.setattr(
        fuzz_readers, "take_run", lambda *words: asked.append(words[1:]) or make_run()
    )
    words = ["--minutes", "0.5", "--seed", "7", "--revision", "d" * 40, "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["tools/fuzz_readers.py", *words])
    with pytest.raises(SystemExit) as ended:
        fuzz_readers.main()
    assert not ended.value.code
    assert asked == [(30, 7)]
    receipt = receipts.read(out)
    assert receipt["command"][:5] == ["python", "-m", "tools.fuzz_readers", "--minutes", "0.5"]
    assert receipt["revision"] == {"commit": "d" * 40, "clean": True}


def test_nothing_imports_gramary_before_the_fuzzer_can_instrument_it() -> None:
    code = "import sys, tools.fuzz_readers; sys.exit('gramary' in sys.modules)"
    done = run_apart(code)
    assert done.returncode == 0
