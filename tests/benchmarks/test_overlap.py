"""`gramary bench overlap`: checks, times, writes a trace file and draws both timelines."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import overlap as benchmark
from benchmarks.receipts import schema as receipts
from benchmarks.stand_in import require_same_outputs
from gramary.cli import main
from gramary.tracing import SPAN_NAMES, Span

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("placement", ["host", "disk"])
def test_smoke(tmp_path: Path, placement: str) -> None:
    """Both options, every output compared, the trace and the picture of both in one file each."""
    files = [tmp_path / name for name in ("receipt.json", "trace.json", "timeline.svg")]
    receipt_file, trace_file, picture = files
    words = ["--out", str(receipt_file), "--trace", str(trace_file), "--plot", str(picture)]
    benchmark.main([*words, "--placement", placement, "--smoke", "--revision", "0" * 40])
    receipt = receipts.read(receipt_file)
    idle, total = receipt["cases"]
    assert set(idle["candidates"]) == set(total["candidates"]) == set(benchmark.OPTIONS.values())
    size = benchmark.SMOKE
    outputs = size.num_chunks * size.chunk_tokens * 4 * size.hidden_size
    # Once before anything is timed, once behind each turn.
    assert idle["check"]["compared"] == 2 * outputs
    assert idle["parameters"]["lanes_on"] == str({"host: prompt-only": 3})
    assert idle["parameters"]["lanes_off"] == str({"stream: prefill_early_request is off": 3})
    events = json.loads(trace_file.read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    read = "gather" if placement == "host" else "read_disk"
    assert {"write_inputs", read, "publish", "wait_rows", "copy_rows", "release"} <= names
    assert names <= {*SPAN_NAMES, "dense layers", "PLE layer"}
    headings = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert headings == list(benchmark.OPTIONS.values())
    for heading in headings:
        assert f">{heading}<" in picture.read_text()


def test_the_receipt_holds_every_word_of_the_command(tmp_path: Path) -> None:
    words = ["--smoke", "--chunks", "3", "--placement", "host", "--out", str(tmp_path / "r.json")]
    benchmark.main(words)
    command = receipts.read(tmp_path / "r.json")["command"]
    assert command == ["python", "-m", "benchmarks.overlap", *words[:-1], "r.json"]


def test_idle_is_counted_for_the_chunk_that_waits() -> None:
    spans = [
        Span("wait_rows", "stream", 0, 2_000), Span("wait_rows", "stream", 3_000, 4_000),
        Span("PLE layer", "compute", 5_000, 6_000), Span("wait_rows", "stream", 9_000, 9_500),
        Span("PLE layer", "compute", 9_500, 9_900), Span("gather", "service", 0, 9_000),
    ]  # fmt: skip
    assert benchmark.idle_of_chunks(spans) == [3.0, 0.5]


def test_one_wrong_bit_is_found() -> None:
    outputs = [torch.ones(3, 4), torch.zeros(3, 4)]
    others = [output.clone() for output in outputs]
    assert require_same_outputs(outputs, others) == 24
    others[1][2, 3] = -0.0
    with pytest.raises(AssertionError, match="chunk 1: 1 values differ"):
        require_same_outputs(outputs, others)
    outputs[0][1, 1] = others[0][1, 1] = float("nan")
    with pytest.raises(AssertionError, match="chunk 0: 0 values differ, or are not finite"):
        require_same_outputs(outputs, others)


def test_the_command_runs_it_in_the_tree(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gramary bench overlap`, with options that are its own behind its name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    files = [tmp_path / name for name in ("trace.json", "overlap.svg", "receipt.json")]
    words = ["bench", "overlap", "--smoke", "--device", "cpu", "--tree", str(REPOSITORY)]
    words += ["--plot", str(files[1]), "--json", str(files[2])]
    words += ["--trace", str(files[0]), "--chunks", "2", "--placement", "host"]
    with pytest.raises(SystemExit) as left:
        main(words)
    assert not left.value.code, capfd.readouterr()
    assert all(file.stat().st_size > 1000 for file in files)
    assert receipts.read(files[2])["cases"][0]["parameters"]["num_chunks"] == 2
