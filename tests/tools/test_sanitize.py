"""The tool that runs tests under compute-sanitizer."""

import pytest
import sanitize


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
