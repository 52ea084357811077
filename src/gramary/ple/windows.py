"""Windows between the order of positions and the order of columns."""

from __future__ import annotations

import torch

from gramary.errors import ArgumentError


def to_chronological(
    window: torch.Tensor, positions: torch.Tensor | int, state_length: int
) -> torch.Tensor:
    """Returns windows oldest first, as engines with shifting windows keep them.

    Args:
        window: [..., state_capacity, channels], position p in column p mod state_capacity.
        positions: int64 [...] on the window's device (or one int for all): the next position of
            each request, >= 0.
        state_length: columns to return, at most state_capacity.

    Returns:
        A new tensor [..., state_length, channels]; its last column is position
        `positions - 1`; columns of positions below 0 are zero.

    Raises:
        ArgumentError: state_length exceeds the capacity, or positions has another shape.
    """
    capacity = window.shape[-2]
    columns, is_past = _columns(window, positions, state_length, capacity)
    index = columns.unsqueeze(-1).expand(*columns.shape, window.shape[-1])
    return torch.where(is_past.unsqueeze(-1), window.gather(-2, index), 0)


def from_chronological(
    columns: torch.Tensor, positions: torch.Tensor | int, state_capacity: int
) -> torch.Tensor:
    """Returns windows addressed by position from windows kept oldest first.

    Args:
        columns: [..., state_length, channels], the last column being position `positions - 1`.
        positions: int64 [...] on the same device (or one int for all), >= 0.
        state_capacity: columns of the result, at least state_length.

    Returns:
        A new tensor [..., state_capacity, channels], position p in column p mod state_capacity;
        every other column, and those of positions below 0, are zero.

    Raises:
        ArgumentError: state_capacity is too small, or positions has another shape.
    """
    state_length = columns.shape[-2]
    targets, is_past = _columns(columns, positions, state_length, state_capacity)
    window = columns.new_zeros(*columns.shape[:-2], state_capacity, columns.shape[-1])
    index = targets.unsqueeze(-1).expand_as(columns)
    return window.scatter(-2, index, torch.where(is_past.unsqueeze(-1), columns, 0))


def _columns(
    window: torch.Tensor, positions: torch.Tensor | int, state_length: int, capacity: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the column of each of the last positions, and whether it is 0 or more."""
    if state_length > capacity:
        raise ArgumentError(
            f"state_length: expected at most the capacity {capacity}, got {state_length}"
        )
    batch = window.shape[:-2]
    next_position = torch.as_tensor(positions, dtype=torch.int64, device=window.device)
    if next_position.ndim and next_position.shape != batch:
        raise ArgumentError(
            f"positions: expected shape {list(batch)}, got {list(next_position.shape)}"
        )
    steps = torch.arange(-state_length, 0, device=window.device)
    past = next_position.expand(batch).unsqueeze(-1) + steps
    return past.remainder(capacity), past >= 0
