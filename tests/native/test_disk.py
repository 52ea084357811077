"""The core's disk reader by itself: rows to places of a larger output, and what it counts."""

import time
from pathlib import Path

import pytest
import torch
from abilities import READERS
from disk_stage import make_rows, write_layout
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gramary.errors import RowReadError
from gramary.files.layout import RowLayout
from gramary.native.disk import DiskReader

SENTINEL = 0xA5


def read_to_places(
    reader: DiskReader, row_ids: torch.Tensor, places: torch.Tensor, num_rows: int
) -> torch.Tensor:
    """What an output of so many rows holds once each row was read to its place."""
    out = torch.full((num_rows, reader.row_bytes), SENTINEL, dtype=torch.uint8)
    reader._core.read(row_ids.data_ptr(), len(row_ids), out.data_ptr(), places.data_ptr())
    return out


@pytest.mark.parametrize("name", READERS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_each_row_goes_to_its_place_and_nowhere_else(tmp_path_factory, name, data) -> None:
    num_rows = data.draw(st.integers(1, 300))
    row_bytes = data.draw(st.sampled_from([2, 90, 160, 5000]))
    splits = [s for s in data.draw(st.sampled_from([[], [7, 100]])) if s < num_rows]
    columns = data.draw(st.sampled_from([(), (row_bytes // 2,)]))
    rows = make_rows(num_rows, row_bytes)
    gap = data.draw(st.sampled_from([0, 7]))
    folder = tmp_path_factory.mktemp("rows")
    layout = write_layout(folder, rows, splits=tuple(splits), columns=columns, gap=gap)
    ids = data.draw(st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=200))
    num_places = len(ids) + data.draw(st.integers(0, 100))
    chosen = data.draw(st.permutations(range(num_places)))[: len(ids)]
    row_ids, places = torch.tensor(ids), torch.tensor(chosen)
    reader = DiskReader(layout, reader=name)
    out = read_to_places(reader, row_ids, places, num_places)
    reader.close()
    expected = torch.full_like(out, SENTINEL)
    expected[places] = rows[row_ids]
    assert torch.equal(out, expected)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[RowLayout, torch.Tensor]:
    rows = make_rows(50_000, 640)
    return write_layout(tmp_path_factory.mktemp("table"), rows, splits=(20_000,), gap=100), rows


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("num_ids", [5000, 40_000, 262_144 + 77])
def test_places_of_large_batches(table, name, num_ids) -> None:
    """On every path of the reader, also where a batch is cut into pieces."""
    layout, rows = table
    generator = torch.Generator().manual_seed(num_ids)
    row_ids = torch.randint(0, len(rows), (num_ids,), generator=generator)
    places = torch.randperm(num_ids + 1000, generator=generator)[:num_ids].contiguous()
    reader = DiskReader(layout, reader=name)
    for _ in range(2):
        out = read_to_places(reader, row_ids, places, num_ids + 1000)
        assert torch.equal(out[places], rows[row_ids])
        untouched = torch.ones(len(out), dtype=torch.bool)
        untouched[places] = False
        assert bool((out[untouched] == SENTINEL).all())
    reader.close()


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("name", READERS[:2])
def test_a_failure_leaves_other_places_alone(table, name) -> None:
    """Behaviour 32: rows that nobody asked to be written stay what they were."""
    layout, _ = table
    reader = DiskReader(layout, reader=name)
    reader.set_script(torch.tensor([[0, 0, 5, 0]]))
    out = torch.full((20, 640), SENTINEL, dtype=torch.uint8)
    row_ids, places = torch.arange(10), torch.arange(0, 20, 2)
    with pytest.raises(RowReadError):
        reader._core.read(row_ids.data_ptr(), 10, out.data_ptr(), places.data_ptr())
    assert bool((out[1::2] == SENTINEL).all())
    reader.close()


def blocks_of(layout: RowLayout, row_ids: torch.Tensor) -> int:
    """Distinct blocks of 4 KiB that the rows touch, by the layout's own formula."""
    blocks = set()
    for row in set(row_ids.tolist()):
        for run in layout.runs_between(row, row + 1):
            for part in run.parts:
                first = part.byte_of(row - run.first_row)
                last = first + part.width - 1
                blocks |= {(part.file, b) for b in range(first // 4096, last // 4096 + 1)}
    return len(blocks)


@pytest.mark.behaviour(34)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("columns", [(), (200,)])
def test_counters_add_up(tmp_path: Path, name: str, columns: tuple[int, ...]) -> None:
    """Behaviour 34: rows, distinct rows and blocks, bytes and time, of small and large batches."""
    rows = make_rows(30_000, 640)
    layout = write_layout(tmp_path, rows, splits=(9000,), columns=columns, gap=60)
    reader = DiskReader(layout, reader=name)
    expected = dict.fromkeys(("num_batches", "num_rows", "num_distinct_rows", "num_blocks"), 0)
    started = time.perf_counter_ns()
    for num_ids in (1, 2, 33, 700, 5000, 20_000):
        row_ids = torch.randint(0, len(rows), (num_ids,)) // 3 * 3
        out = torch.empty(num_ids, 640, dtype=torch.uint8)
        before = reader.stats()
        reader.read(row_ids, out)
        after = reader.stats()
        expected["num_batches"] += 1
        expected["num_rows"] += num_ids
        expected["num_distinct_rows"] += len(row_ids.unique())
        expected["num_blocks"] += blocks_of(layout, row_ids)
        assert {key: after[key] for key in expected} == expected
        assert all(after[key] >= before[key] for key in before if key.startswith("num_"))
        num_bytes = after["read_bytes"] - before["read_bytes"]
        # Every distinct byte asked for came, and no block came more than twice (for the rows that
        # the page cache held, and for those that it did not).
        assert num_bytes >= len(row_ids.unique()) * 640
        assert num_bytes <= 2 * 4096 * blocks_of(layout, row_ids)
    passed = time.perf_counter_ns() - started
    stats = reader.stats()
    assert stats["row_bytes"] == expected["num_rows"] * 640
    assert stats["amplification"] == stats["read_bytes"] / stats["row_bytes"]
    assert 0 < stats["planning_ns"] + stats["cached_ns"] + stats["reading_ns"] <= passed
    assert stats["num_direct_reads"] <= stats["num_backend_reads"]
    assert stats["num_failures"] == stats["num_retries"] == 0
    reader.close()
