"""Windows oldest first and back."""

import pytest
import torch

from gramary import ple
from gramary.errors import ArgumentError


@pytest.mark.parametrize("capacity", [9, 10, 14])
@pytest.mark.parametrize("position", [0, 1, 5, 9, 10, 23, 2**40 + 3])
def test_round_trip(capacity: int, position: int) -> None:
    columns = torch.arange(1.0, 10.0).unsqueeze(1) + torch.arange(3) / 10
    window = ple.from_chronological(columns, position, capacity)
    assert window.shape == (capacity, 3)
    for step in range(9):
        past = position - 9 + step
        expected = columns[step] if past >= 0 else torch.zeros(3)
        assert torch.equal(window[past % capacity], expected)
    back = ple.to_chronological(window, position, 9)
    expected = columns.clone()
    expected[: max(9 - position, 0)] = 0
    assert torch.equal(back, expected)


def test_batches_with_their_own_positions() -> None:
    pool = torch.full((4, 6, 2), float("nan"))
    positions = torch.tensor([0, 2, 7, 100])
    columns = torch.randn(4, 3, 2)
    pool = ple.from_chronological(columns, positions, 6)
    assert not pool.isnan().any()
    back = ple.to_chronological(pool, positions, 3)
    assert torch.equal(back[2:], columns[2:])
    assert torch.equal(back[1], torch.stack([torch.zeros(2), *columns[1, 1:]]))
    assert (back[0] == 0).all()


def test_positions_below_zero_are_never_read() -> None:
    window = torch.full((12, 2), float("nan"))
    window[:2] = 1.0
    assert not ple.to_chronological(window, 2, 9).isnan().any()


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match=r"^state_length: expected at most the capacity 5"):
        ple.to_chronological(torch.zeros(5, 2), 3, 6)
    with pytest.raises(ArgumentError, match=r"^positions: expected shape \[2\], got \[3\]"):
        ple.to_chronological(torch.zeros(2, 5, 2), torch.zeros(3, dtype=torch.int64), 4)
