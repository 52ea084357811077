"""The connector's soak in small: no wrong row, no leak, and a failure is told."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks import soak_connector, soak_lane
from benchmarks.receipts import schema as receipts


def test_smoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "soak.json"
    words = ["--smoke", "--out", str(path), "--revision", "b" * 40]
    with pytest.raises(SystemExit) as ended:
        soak_connector.main(words)
    assert not ended.value.code, capsys.readouterr().out
    receipt = json.loads(path.read_text())
    receipts.validate(receipt)
    counts = receipt["runs"][0]["counts"]
    assert counts["requests"] >= 1200
    assert counts["connectors"] == 4
    for happened in ("host lane", "stream lane", "canceled", "timed out", "rows checked", "busy"):
        assert counts[happened] > 0, happened


def test_wrong_rows_and_leaks_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    soak = soak_lane.Soak(soak_lane.Plan(seed=3, num_requests=60, requests_each=20))
    right = soak.resident.embed
    monkeypatch.setattr(soak.resident, "embed", lambda *args, **kw: right(*args, **kw) + 1)
    holdings = soak_lane.Holdings.now()
    soak._compare(holdings, dataclasses.replace(holdings, descriptors=holdings.descriptors + 1))
    soak._compare(holdings, dataclasses.replace(holdings, rings=soak_lane.MAX_RINGS + 1))
    run = soak.run()
    assert "descriptors" in run["failures"][0]
    assert "rings" in run["failures"][1]
    assert any("wrong rows" in failure for failure in run["failures"])
