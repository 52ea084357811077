"""The GPU benchmark's work and its check, interpreted over a small table."""

import dataclasses

import pytest
import torch

from benchmarks import embed_gpu, harness
from benchmarks.gpu_full_table import full_spec
from benchmarks.timers import CpuTimer
from gramary.native.rows import NO_ROWS, RowExtent
from gramary.ops.extents import Extents

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPEC = full_spec(100)


def make_place(name: str, split: int) -> embed_gpu.Place:
    """Returns a small table with rows below `split` on the device, the others on the host."""
    rows = embed_gpu.random_rows(SPEC.num_rows, "cpu")
    if DEVICE == "cuda":
        rows = rows.pin_memory()
    on_device = rows[:split].to(DEVICE) if split else None
    on_host = RowExtent(rows.data_ptr() + split * 160, split, SPEC.num_rows - split)
    device = NO_ROWS if on_device is None else RowExtent(on_device.data_ptr(), 0, split)
    return embed_gpu.Place(name, SPEC, Extents(SPEC.num_rows, device, on_host), on_device, rows)


PLACES = {"device": SPEC.num_rows, "split": 700, "host": 0}


@pytest.mark.parametrize("name", PLACES)
def test_every_candidate_gives_the_rows_of_plain_indexing(name: str) -> None:
    case = embed_gpu.make_case(make_place(name, PLACES[name]), 2, 1, 2, device=DEVICE)
    case = dataclasses.replace(case, timer=CpuTimer(once=True), num_samples=1)
    timed = harness.measure(case)
    assert timed["check"]["compared"] == 2 * 16 * 160
    assert set(timed["candidates"]) >= {"three launches", "one launch"}


def test_a_row_that_differs_is_found() -> None:
    place = make_place("split", 700)
    assert place.host_rows is not None
    # What plain indexing sees is no longer what the kernels read.
    broken = dataclasses.replace(place, host_rows=place.host_rows ^ 1)
    case = embed_gpu.make_case(broken, 1, 1, 1, device=DEVICE)
    with pytest.raises(AssertionError, match="rows differ"):
        case.check()


def test_codes_are_random_and_none_is_nan() -> None:
    codes = embed_gpu.random_rows(100, "cpu")
    assert not ((codes & 0x7F) == 0x7F).any()
    assert codes.unique().numel() > 100
