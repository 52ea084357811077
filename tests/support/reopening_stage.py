"""What runs in a worker process that was handed a table, a layer and a batch."""

from typing import Any

import torch

from gramary import Batch, PLELayer, Table
from gramary.errors import GramaryError


def read(given: tuple[Table, Table, PLELayer, Batch], answers: Any) -> None:
    """Puts the rows of a table, of one that is shared, and what a layer computes; or the error."""
    table, shared, layer, batch = given
    tensors = (batch.token_ids, batch.query_start_loc, batch.history)
    hidden = torch.ones(batch.num_tokens, layer.geometry.channels, dtype=layer.dtype)
    try:
        results = [table.embed(*tensors), shared.embed(*tensors), layer(hidden, *tensors[:2])]
        table.lookup(torch.tensor([table.spec.num_rows]))
    except GramaryError as error:
        # By value: a tensor would go by memory that is gone with this process.
        answers.put(([result.float().tolist() for result in results], error))
    layer.table.close()
    table.close()
    shared.close()
