"""A layer that opens a table closes it."""

from pathlib import Path

import pytest
import torch

from gramary import PLELayer, Table
from gramary.errors import ClosedError


def test_a_layer_closes_the_table_that_it_opened_and_no_other() -> None:
    folder = Path(__file__).parents[2] / "models" / "tiny"
    with PLELayer.from_checkpoint(folder, placement="disk") as layer:
        opened = layer.table
        assert opened is not None
        opened.lookup(torch.tensor([3]))
    with pytest.raises(ClosedError):
        opened.lookup(torch.tensor([3]))
    layer.close()
    with Table.open(folder, placement="disk") as table:
        with PLELayer.from_checkpoint(folder, table=table):
            pass
        table.lookup(torch.tensor([3]))
