"""Folders for benchmarks open as the tables that were written, in any number of shards."""

from pathlib import Path

import pytest
import torch

from benchmarks.gpu_full_table import full_spec
from benchmarks.stand_in import write_model
from benchmarks.table_batch import SMALL_SPEC
from benchmarks.table_folder import SCALE, formula_shards, write_table_folder
from gramary import HashSpec, Table


@pytest.mark.parametrize("placement", ["host", "disk"])
@pytest.mark.parametrize("num_shards", [1, 3, 16])
@pytest.mark.parametrize("spec", [full_spec(100), SMALL_SPEC], ids=["published", "first layer"])
def test_the_rows_written_are_read(
    tmp_path: Path, spec: HashSpec, num_shards: int, placement: str
) -> None:
    shards = formula_shards(spec, num_shards, "cpu")
    folder = write_table_folder(tmp_path, spec, shards)
    with Table.open(folder, placement=placement) as table:
        assert table.spec == spec
        assert table.codec.scale == SCALE
        row_ids = torch.arange(spec.num_rows)
        assert torch.equal(table.lookup(row_ids, dtype=torch.uint8), torch.cat(shards))
        assert table.lookup(row_ids).isfinite().all()


def test_a_scale_and_the_stand_ins_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    spec = full_spec(50)
    write_table_folder(tmp_path, spec, formula_shards(spec, 2, "cpu"), scale=0.5)
    folders = (tmp_path, write_model(tmp_path / "model", 50))
    with Table.open(folders[0]) as one, Table.open(folders[1]) as other:
        assert (one.codec.scale, other.codec.scale) == (0.5, SCALE)
        row_ids = torch.arange(0, spec.num_rows, 7)
        rows = [table.lookup(row_ids, dtype=torch.uint8) for table in (one, other)]
        assert torch.equal(*rows)
        assert len(rows[0].unique(dim=0)) == len(row_ids)
