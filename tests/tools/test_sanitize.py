"""The tool that runs tests under compute-sanitizer."""

import json
from pathlib import Path
from typing import Any

import pytest
import sanitize
from receipt_stage import make_run


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0),
        ("========= ERROR SUMMARY: 1 error\n========= ERROR SUMMARY: 2 errors", 3),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0),
        ("========= RACECHECK SUMMARY: 4 hazards displayed (4 errors, 0 warnings)", 4),
        ("........ [100%]", None),
    ],
)
def test_errors_of_all_processes_are_summed(output: str, found: int | None) -> None:
    assert sanitize.count_found(output) == found


@pytest.mark.parametrize("failures", [[], ["memcheck: 3"]])
def test_every_tool_of_the_sanitizer_is_a_run(
    failures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_tool(tool: str, words: list[str]) -> dict[str, Any]:
        return make_run(name=tool, parameters={"tests": " ".join(words)}, failures=failures)

    monkeypatch.setattr(sanitize, "sanitize", run_tool)
    out = tmp_path / "r.json"
    with pytest.raises(SystemExit) as ended:
        sanitize.main(["--revision", "c" * 40, "--out", str(out), "tests/ple", "-k", "cuda"])
    assert bool(ended.value.code) == bool(failures)
    runs = json.loads(out.read_text())["runs"]
    assert [run["name"] for run in runs] == list(sanitize.TOOLS)
    assert runs[0]["parameters"] == {"tests": "tests/ple -k cuda"}
