"""Operations behind a handle: what a traced graph holds, and what it computes."""

import gc

import pytest
import torch

from gramary.errors import ClosedError
from gramary.ops import opaque


class SmallTable:
    """Stands in for a table: row i of 1000 is [i, i+1/4] in float32; a token has two rows."""

    def __init__(self) -> None:
        self.rows = torch.arange(1000.0).unsqueeze(1) + torch.tensor([0.0, 0.25])
        self.handle = opaque.register(self)

    def embed(self, token_ids, query_start_loc, history, *, out):
        before = 0 if history is None else int(history.sum())
        row_ids = torch.stack([token_ids, token_ids + 1 + before], dim=1)
        row_ids[query_start_loc[-1] :] = 0
        out.copy_(self.rows[row_ids].flatten(1))

    def lookup(self, row_ids, *, out):
        out.copy_(self.rows[row_ids])


def compiled(function, seen: list[torch.fx.GraphModule]):
    """Returns `function` compiled as one graph, which is kept in `seen`."""

    def backend(graph: torch.fx.GraphModule, inputs):
        del inputs
        seen.append(graph)
        return graph.forward

    return torch.compile(function, backend=backend, fullgraph=True, dynamic=True)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.behaviour(9)
def test_a_traced_graph_holds_a_handle_and_no_table():
    """9: no input, parameter, buffer or constant of the graph is as large as the table."""
    table = SmallTable()

    def layer(token_ids, starts, history):
        rows = opaque.embed(table.handle, token_ids, starts, history, 4, torch.float32)
        return rows * 2 + opaque.lookup(table.handle, token_ids, 2, torch.float32).sum()

    graphs: list[torch.fx.GraphModule] = []
    run = compiled(layer, graphs)
    starts = torch.tensor([0, 2], dtype=torch.int32)
    for num_tokens in (3, 5):
        token_ids = torch.arange(7, 7 + num_tokens)
        history = torch.tensor([[1, 2]])
        torch.testing.assert_close(
            run(token_ids, starts, history), layer(token_ids, starts, history)
        )
    held = [
        node.meta["example_value"]
        for graph in graphs
        for node in graph.graph.nodes
        if node.op in ("placeholder", "get_attr")
    ]
    tensors = [value for value in held if isinstance(value, torch.Tensor)]
    assert len(tensors) == 3 * len(graphs)
    assert all(tensor.dtype != torch.float32 for tensor in tensors)


def test_a_caller_s_buffer_is_written_in_place():
    table = SmallTable()

    def step(token_ids, starts, out, rows):
        opaque.embed_out(table.handle, token_ids, starts, None, out)
        opaque.lookup_out(table.handle, token_ids, rows)
        return out + 1

    token_ids = torch.tensor([4, 9])
    starts = torch.tensor([0, 2], dtype=torch.int32)
    out, rows = torch.full((2, 4), float("nan")), torch.full((2, 2), float("nan"))
    result = torch.compile(step, backend="aot_eager", fullgraph=True)(token_ids, starts, out, rows)
    expected = torch.tensor([[4, 4.25, 5, 5.25], [9, 9.25, 10, 10.25]])
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(rows, expected[:, :2])
    torch.testing.assert_close(result, expected + 1)


@pytest.mark.parametrize("num_tokens", [0, 3])
def test_the_operators_keep_their_contract(num_tokens: int):
    table = SmallTable()
    token_ids = torch.arange(num_tokens)
    starts = torch.tensor([0, num_tokens], dtype=torch.int32)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for history in (None, torch.tensor([[0, 0]])):
        arguments = (table.handle, token_ids, starts, history, 4, torch.float32)
        torch.library.opcheck(opaque.embed, arguments, test_utils=checks)
    arguments = (table.handle, token_ids, 2, torch.float32)
    torch.library.opcheck(opaque.lookup, arguments, test_utils=checks)


def test_a_table_that_is_gone_is_named_as_such():
    table = SmallTable()
    handle = table.handle
    del table
    gc.collect()
    with pytest.raises(ClosedError, match="compile for an open one"):
        opaque.lookup(handle, torch.tensor([1]), 2, torch.float32)
