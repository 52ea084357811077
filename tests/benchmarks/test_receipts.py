"""Receipts: the schema, what it refuses, and summaries that follow from the samples."""

import copy
import json
import socket
from pathlib import Path

import pytest
from receipt_stage import make_receipt

from benchmarks import machine
from benchmarks.receipts import counts as count_receipts
from benchmarks.receipts import schema as receipts
from benchmarks.receipts.errors import ReceiptError


def change(receipt: dict, path: str, value: object) -> dict:
    """Returns a copy with the field at a dotted path set, or removed for `...`."""
    changed = copy.deepcopy(receipt)
    *parents, last = path.split(".")
    place = changed
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return changed


def test_a_complete_receipt_is_accepted_and_read_back(tmp_path: Path) -> None:
    receipt = make_receipt()
    receipts.write(receipt, tmp_path / "embed.json")
    assert receipts.read(tmp_path / "embed.json") == receipt


def test_an_unknown_revision_is_recorded_as_unknown() -> None:
    receipts.validate(change(make_receipt(), "revision", {"commit": None, "clean": None}))


REFUSED = [
    ("schema", "gramary.receipt/0", "receipt.schema"),
    ("name", ..., "missing field 'name'"),
    ("extra", 1, "unknown field 'extra'"),
    ("command", [], "receipt.command"),
    ("cases", [], "receipt.cases"),
    ("sources", {}, "receipt.sources"),
    ("versions", {}, "receipt.versions"),
    ("revision.commit", "abc", "40 hex digits"),
    ("revision.clean", ..., "missing field 'clean'"),
    ("revision.clean", 1, "revision.clean: wrong type int"),
    ("hardware.num_cpus", True, "num_cpus: wrong type bool"),
    ("hardware.gpus.0.name", ..., "gpus[0]: missing field 'name'"),
    ("cases.0.unit", "ms", "cases[0].unit"),
    ("cases.0.timer", "stopwatch", "cases[0].timer"),
    ("cases.0.cache", "lukewarm", "cases[0].cache"),
    ("cases.0.check.compared", 0, "nothing was checked"),
    ("cases.0.bytes.moved", ..., "missing field 'moved'"),
    ("cases.0.baseline", "vllm", "'vllm' is no candidate"),
    ("cases.0.candidates.torch.samples", [], "at least one sample"),
    ("cases.0.candidates.torch.samples", [1.0, "2"], "expected finite numbers"),
    ("cases.0.candidates.torch.samples", [0.0], "median of 0"),
    ("cases.0.candidates.gramary.median", 0.5, "does not follow from the samples"),
    ("cases.0.ratios.gramary", 0.01, "does not follow from the samples"),
    ("cases.0.targets.gramary.met", False, "does not follow from the samples"),
    ("cases.0.targets.gramary.met", ..., "targets.gramary: missing field 'met'"),
    ("cases.0.targets.gramary.why", "so", "targets.gramary: unknown field 'why'"),
    ("cases.0.targets.gramary.of", 1, "targets.gramary.of: wrong type int"),
    ("cases.0.targets.gramary.of", "mean", "targets.gramary.of: expected one of"),
    ("cases.0.targets.gramary.of", "maximum", "does not follow from the samples"),
    ("cases.0.cache_note", "read /srv/models/big.bin first", "absolute path"),
    ("command", ["python", "--model=/data/model/x"], "absolute path"),
]


@pytest.mark.parametrize(("path", "value", "message"), REFUSED)
def test_what_is_wrong_is_refused_and_named(path: str, value: object, message: str) -> None:
    with pytest.raises(ReceiptError) as caught:
        receipts.validate(change(make_receipt(), path, value))
    assert message in str(caught.value)


def test_a_single_candidate_has_no_baseline() -> None:
    receipt = make_receipt()
    del receipt["cases"][0]["candidates"]["gramary"]
    with pytest.raises(ReceiptError, match="a baseline and one more"):
        receipts.validate(receipt)


def test_rates_and_relative_paths_are_no_machine_paths() -> None:
    note = "54 GB/s over the bus, 1/2 of rows; see benchmarks/results/embed.json"
    receipts.validate(change(make_receipt(), "cases.0.cache_note", note))


def test_the_host_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "builder-17")
    receipt = change(make_receipt(), "cases.0.cache_note", "warm on builder-17")
    with pytest.raises(ReceiptError, match="host name"):
        receipts.write(receipt, tmp_path / "r.json")
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize("content", ["{", "[]", "null", '"text"', "\xff"])
def test_a_file_that_is_no_receipt_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ReceiptError, match=r"^r\.json: "):
        receipts.read(tmp_path / "r.json")


def test_summary_holds_median_and_percentiles() -> None:
    summary = receipts.summarise([float(i) for i in range(10, 0, -1)])
    assert (summary["median"], summary["p20"], summary["p80"]) == (5.5, 2.0, 8.0)
    assert summary["samples"][0] == 10.0


def test_a_missed_target_is_recorded_as_missed() -> None:
    result = receipts.compare({"a": [2.0], "b": [3.0]}, "a", {"b": 1.2})
    assert result["ratios"] == {"b": 1.5}
    assert result["targets"] == {"b": {"at_most": 1.2, "met": False}}


def test_nothing_is_promised_of_the_baseline() -> None:
    with pytest.raises(ReceiptError, match="the baseline 'a' can have none"):
        receipts.compare({"a": [2.0], "b": [3.0]}, "a", {"a": 1.0})


def test_every_receipt_of_the_repository_is_valid() -> None:
    for path in sorted(machine.RESULTS.glob("*.json")):
        receipt = receipts.read(path)
        assert receipt["name"], path
        known = (receipts.SCHEMA, count_receipts.SCHEMA)
        assert json.loads(path.read_text())["schema"] in known


def make_count_receipt() -> dict:
    """Returns a small valid receipt of counts."""
    receipt = {key: value for key, value in make_receipt().items() if key != "cases"}
    run = {
        "name": "fuzzing",
        "parameters": {"seed": 0},
        "seconds": 3600.5,
        "counts": {"executions": 100_000, "refusals": 0},
        "failures": [],
    }
    return receipt | {"schema": count_receipts.SCHEMA, "runs": [run]}


def test_a_receipt_of_counts_is_accepted_and_read_back(tmp_path: Path) -> None:
    receipt = make_count_receipt()
    receipts.write(receipt, tmp_path / "fuzz.json")
    assert receipts.read(tmp_path / "fuzz.json") == receipt


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", "gramary.receipt.counts/0", "missing field 'cases'"),
        ("runs", [], "receipt.runs"),
        ("cases", [], "unknown field 'cases'"),
        ("runs.0.seconds", -1.0, "length of time"),
        ("runs.0.seconds", float("nan"), "length of time"),
        ("runs.0.counts", {}, "nothing"),
        ("runs.0.counts", {"executions": 0}, "nothing"),
        ("runs.0.counts.executions", 1.5, "expected a count"),
        ("runs.0.counts.executions", True, "expected a count"),
        ("runs.0.failures", [1], "lines of text"),
        ("runs.0.failures", ["wrote /var/lib/thing"], "absolute path"),
        ("runs.0.extra", 1, "unknown field 'extra'"),
    ],
)
def test_a_wrong_receipt_of_counts_is_refused(path: str, value: object, message: str) -> None:
    with pytest.raises(ReceiptError, match=message):
        receipts.validate(change(make_count_receipt(), path, value))
