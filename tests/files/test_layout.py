"""The description of rows in files."""

import dataclasses

import pytest

from gramary.errors import ArgumentError
from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun

FILE = RowFile("weights", 1000, (1, 2, 3))
PART = RowPart(file=0, offset=8, width=10, column=0, rows_per_block=5, block_bytes=50, stride=10)


def layout(*runs: RowRun, row_bytes: int = 10) -> RowLayout:
    return RowLayout((FILE,), row_bytes, runs)


def test_rows_in_one_block_are_a_stride_apart():
    assert [PART.byte_of(row) for row in range(3)] == [8, 18, 28]
    assert PART.end_of(3) == 38
    assert PART.end_of(0) == 0


def test_rows_in_padded_blocks_start_anew_in_each():
    part = dataclasses.replace(PART, rows_per_block=3, block_bytes=64)
    assert [part.byte_of(row) for row in range(7)] == [8, 18, 28, 72, 82, 92, 136]
    assert part.end_of(7) == 146


def test_offsets_beyond_32_bits_are_exact():
    part = dataclasses.replace(PART, rows_per_block=2**31, block_bytes=2**31 * 160, stride=160)
    assert part.byte_of(320_001_535) == 8 + 320_001_535 * 160


def test_runs_cover_every_row_once():
    good = layout(RowRun(0, 5, (PART,)), RowRun(5, 3, (PART,)))
    assert good.num_rows == 8
    assert good.nbytes == 80
    assert good.runs_between(4, 5) == good.runs[:1]
    assert good.runs_between(4, 6) == good.runs
    assert good.runs_between(3, 3) == ()
    assert layout().num_rows == 0


def test_a_source_file_is_known_by_its_identity(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    link = tmp_path / "link"
    link.symlink_to(path)
    assert RowFile.from_path(path).size == 3
    assert RowFile.from_path(link).identity == RowFile.from_path(path).identity


@pytest.mark.parametrize(
    "runs",
    [
        (RowRun(1, 4, (PART,)),),
        (RowRun(0, 4, (PART,)), RowRun(3, 4, (PART,))),
        (RowRun(0, 4, (PART,)), RowRun(5, 4, (PART,))),
        (RowRun(0, 0, (PART,)),),
        (RowRun(0, 4, ()),),
        (RowRun(0, 4, (PART, PART)),),
        (RowRun(0, 4, (dataclasses.replace(PART, column=1),)),),
        (RowRun(0, 4, (dataclasses.replace(PART, width=9),)),),
        (RowRun(0, 4, (dataclasses.replace(PART, file=1),)),),
        (RowRun(0, 4, (dataclasses.replace(PART, offset=-1),)),),
        (RowRun(0, 4, (dataclasses.replace(PART, offset=961),)),),
        (RowRun(0, 4, (dataclasses.replace(PART, stride=9),)),),
        (RowRun(0, 4, (dataclasses.replace(PART, rows_per_block=0),)),),
        (RowRun(0, 4, (dataclasses.replace(PART, block_bytes=49),)),),
    ],
)
def test_a_layout_that_cannot_be_is_refused(runs):
    with pytest.raises(ArgumentError, match="runs"):
        layout(*runs)
