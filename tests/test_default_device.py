"""The framework's default device and dtype have no say in where gramary works."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._device import _device_constructors

import gramary

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "gramary"
MODEL = ROOT / "models" / "tiny"
FACTORIES = {factory.__name__ for factory in _device_constructors()}
# A buffer that follows the model it is part of, and memory that is pinned where it is made.
EXEMPT = {"integrations/table_embedding.py"}


def placeless_calls(path: Path) -> Iterator[int]:
    """Yields the lines that make a tensor without saying where."""
    for node in ast.walk(ast.parse(path.read_text())):
        is_factory = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "torch"
            and node.func.attr in FACTORIES
        )
        if is_factory and not {"device", None} & {word.arg for word in node.keywords}:
            yield node.lineno


def test_every_new_tensor_says_where_it_lies() -> None:
    found = {
        name: lines
        for path in PACKAGE.rglob("*.py")
        if (name := path.relative_to(PACKAGE).as_posix()) not in EXEMPT
        if (lines := list(placeless_calls(path)))
    }
    assert not found


def outputs(placement: str) -> list[torch.Tensor]:
    """Opens a table and its layer, and reads a batch of two requests in every way."""
    cpu = {"device": "cpu"}
    token_ids = torch.tensor([73, 416, 32, 919, 97, 115], **cpu)
    starts = torch.tensor([0, 4, 6], dtype=torch.int32, **cpu)
    with gramary.Table.open(MODEL, placement=placement) as table:
        layer = gramary.PLELayer.from_checkpoint(MODEL, table=table)
        hidden = torch.ones(6, layer.geometry.channels, dtype=layer.dtype, **cpu)
        state = layer.new_state(2, max_speculative_tokens=1)
        batch = gramary.Batch.from_prompts(table.spec, [[1, 2], [3, 4, 5]], [1, 0], [1, 2])
        table.check_integrity()
        return [
            gramary.ngram_ids(table.spec, token_ids, starts),
            table.embed(token_ids, starts),
            table.lookup(torch.arange(131_000, 131_100, **cpu), dtype=torch.uint8),
            layer(hidden, token_ids, starts, state=state),
            layer(hidden, token_ids, starts, state=state),
            state.history(),
            table.embed(batch.token_ids, batch.query_start_loc, batch.history),
        ]


@pytest.mark.parametrize("placement", ["host", "host=2MiB,disk"])
def test_another_default_changes_nothing(placement: str) -> None:
    expected = outputs(placement)
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            got = outputs(placement)
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(got, expected, strict=True):
        assert (one.dtype, one.device) == (other.dtype, other.device)
        assert torch.equal(one, other)
