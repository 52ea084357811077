"""Public calls stay short: ceilings on the Python frames and files that a warm call enters."""

import pytest

from tools import count_calls

# Frames, files.
CEILINGS = {
    "lookup, host": (14, 8),
    "embed, host": (19, 9),
    "embed, host+disk": (31, 12),
    "request+wait, host lane": (44, 12),
    "request+wait, stream lane": (46, 12),
}


@pytest.fixture(scope="module")
def passages() -> dict[str, count_calls.Passage]:
    return count_calls.count()


@pytest.mark.parametrize("name", CEILINGS)
def test_a_call_passes_through_few_frames_and_files(
    passages: dict[str, count_calls.Passage], name: str
) -> None:
    calls, files = CEILINGS[name]
    assert passages[name].calls <= calls
    assert passages[name].files <= files


def test_every_public_call_has_a_ceiling(passages: dict[str, count_calls.Passage]) -> None:
    assert passages.keys() == CEILINGS.keys()
