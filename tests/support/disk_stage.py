"""Tables in files for the tests of the disk tier."""

import itertools
from pathlib import Path

import torch

from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun
from gramary.tiers.base import Tier


def make_rows(num_rows: int, row_bytes: int) -> torch.Tensor:
    """Random rows, the same for the same shape."""
    generator = torch.Generator().manual_seed(num_rows * 1000 + row_bytes)
    return torch.randint(0, 256, (num_rows, row_bytes), dtype=torch.uint8, generator=generator)


def write_layout(
    folder: Path,
    rows: torch.Tensor,
    *,
    splits: tuple[int, ...] = (),
    columns: tuple[int, ...] = (),
    gap: int = 0,
) -> RowLayout:
    """Writes rows uint8 [n, row_bytes] as one file for each run and describes them.

    Args:
        folder: where the files go.
        rows: the rows.
        splits: first rows of the runs after the first.
        columns: first bytes of the parts after the first.
        gap: bytes before every part.
    """
    num_rows, row_bytes = rows.shape
    files, runs = [], []
    for i, (begin, end) in enumerate(itertools.pairwise([0, *splits, num_rows])):
        path = folder / f"run{i}.bin"
        parts, data = [], b""
        for left, right in itertools.pairwise([0, *columns, row_bytes]):
            data += bytes(gap)
            num, width = end - begin, right - left
            parts.append(RowPart(i, len(data), width, left, num, width * num, width))
            data += rows[begin:end, left:right].contiguous().numpy().tobytes()
        path.write_bytes(data)
        files.append(RowFile.from_path(path))
        runs.append(RowRun(begin, end - begin, tuple(parts)))
    return RowLayout(tuple(files), row_bytes, tuple(runs))


def gather(tier: Tier, row_ids: torch.Tensor) -> torch.Tensor:
    """The rows of a tier, over a buffer that an unwritten byte shows in."""
    out = torch.full((len(row_ids), tier.row_bytes), 0xA5, dtype=torch.uint8)
    tier.gather(row_ids, out)
    return out
