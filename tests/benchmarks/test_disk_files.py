"""The disk benchmarks' helpers say where rows lie, and their checks pass on small files."""

import contextlib

import pytest
import torch

from benchmarks import change_watch, disk, harness, pack, uring_core
from benchmarks.disk_files import (
    byte_offsets,
    describe_table,
    distinct_blocks,
    main,
    write_random_file,
)
from benchmarks.package_process import PackageProcess
from benchmarks.receipts import schema as receipts
from gramary.files.pack import build_pack, open_pack
from gramary.files.stream import read_rows
from gramary.native.raw_disk import lane_shape, read_blocks_raw, read_rows_raw


def test_offsets_are_where_rows_lie(tmp_path) -> None:
    path = tmp_path / "table.bin"
    write_random_file(path, 8 << 20)
    table = describe_table(path)
    build_pack(table, tmp_path / "table.pack")
    for source in (table, open_pack(tmp_path / "table.pack")):
        layout = source.layout
        row_ids = torch.randint(0, layout.num_rows, (200,))
        out = torch.empty(200, layout.row_bytes, dtype=torch.uint8)
        offsets = byte_offsets(layout, row_ids)
        read_rows_raw(layout.files[0].path, offsets, out)
        expected = torch.empty(1, layout.row_bytes, dtype=torch.uint8)
        for row_id, row in zip(row_ids.tolist(), out, strict=True):
            read_rows(layout, row_id, 1, expected)
            assert torch.equal(row, expected[0])
        blocks = distinct_blocks(layout, row_ids)
        touched = {o // 4096 for o in offsets.tolist()}
        touched |= {(o + layout.row_bytes - 1) // 4096 for o in offsets.tolist()}
        assert sorted(touched) == (blocks // 4096).tolist()


def test_the_bare_reader_reads_by_ring_and_by_pread(tmp_path) -> None:
    """Both read every block of a file, and both tell when one cannot be read."""
    path = tmp_path / "table.bin"
    write_random_file(path, 1 << 20)
    offsets = torch.arange(0, 1 << 20, 4096)
    num_threads, depth = lane_shape()
    for shape in ((num_threads, depth), (4, 1)):
        read_blocks_raw(str(path), offsets, 4096, *shape)
        with pytest.raises(OSError, match="Invalid argument"):
            read_blocks_raw(str(path), torch.cat([offsets, torch.tensor([-8192])]), 4096, *shape)


def test_the_bare_reader_reports_errors(tmp_path) -> None:
    num_threads, depth = lane_shape()
    assert num_threads >= 1
    assert depth >= 1
    with pytest.raises(FileNotFoundError):
        read_blocks_raw(str(tmp_path / "no"), torch.zeros(1).long(), 4096, 1, 4)
    with pytest.raises(FileNotFoundError):
        read_rows_raw(str(tmp_path / "no"), torch.zeros(1).long(), torch.zeros(1, 4).byte())


@pytest.mark.parametrize("module", [disk, pack])
def test_the_first_case_of_each_checks(module, tmp_path) -> None:
    """The equality shown before timing holds on a small table."""
    with contextlib.closing(module.build(True, folder=str(tmp_path))) as cases:
        case = next(cases)
        assert case.baseline in case.candidates
        assert case.check() > 0
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_two_packages_are_compared_in_processes_that_take_turns(tmp_path) -> None:
    """A package beside itself: every candidate is sampled, and the rows of both are right."""
    cases = list(uring_core.build(True, folder=str(tmp_path)))
    assert [case.cache for case in cases] == ["cold", "warm", "warm"]
    for case in cases:
        assert case.check() > 0
        assert case.baseline == list(case.samples)[2]
        assert len({len(samples) for samples in case.samples.values()}) == 1
        assert case.parameters["earlier_core_sha256"] == case.parameters["this_core_sha256"]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    with pytest.raises(FileNotFoundError, match="expected a folder with a built gramary"):
        PackageProcess(tmp_path, "benchmarks.core_side", str(tmp_path / "table.bin"))


def test_the_receipt_holds_every_word_of_the_command(tmp_path, monkeypatch) -> None:
    def build(smoke, table_gib=4.0, folder=None):
        assert not smoke
        yield harness.Case(
            name=f"{table_gib} GiB in {folder}",
            parameters={},
            candidates={"one": lambda: None, "other": lambda: None},
            baseline="one",
            check=lambda: 1,
            checked="nothing",
            moved_bytes=1,
            cache_note="none",
        )

    words = ["--table-gib", "0.5", "--out", str(tmp_path / "r.json"), "--folder", "there"]
    monkeypatch.setattr("sys.argv", ["disk", *words])
    main(harness.Benchmark(name="disk", build=build, sources=["benchmarks/disk.py"]))
    receipt = receipts.read(tmp_path / "r.json")
    assert receipt["cases"][0]["name"] == "0.5 GiB in there"
    words[3] = "r.json"
    assert receipt["command"] == ["python", "-m", "benchmarks.disk", *words]


def test_kind_14_the_cost_of_knowing_is_measured_on_equal_rows() -> None:
    cases = list(change_watch.build(True))
    assert [case.name for case in cases] == [
        "16 warm rows of 1 file(s)", "16 warm rows of 16 file(s)"
    ]  # fmt: skip
    for case in cases:
        assert set(case.samples) == {change_watch.EARLIER, change_watch.KNOWS}
        assert case.targets[change_watch.KNOWS] >= 1.03
