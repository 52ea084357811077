"""A flat batch: made once of what a caller passed, and then trusted."""

import ast
from pathlib import Path

import pytest
import torch

import gramary
from gramary.flat_batch import FlatBatch

TOKENS = torch.arange(12)
STARTS = torch.tensor([0, 4, 6], dtype=torch.int32)
HISTORY = torch.arange(4).reshape(2, 2)

# Views that are not their numbers, one behind the other, in memory.
VIEWS = {
    "with gaps": lambda tensor: torch.stack((tensor, tensor), -1)[..., 0],
    "negated": lambda tensor: torch._neg_view(-tensor),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_tensors_lie_in_memory_as_they_are_read(view) -> None:
    batch = FlatBatch.checked(2, view(TOKENS), view(STARTS), view(HISTORY))
    assert batch.history is not None
    for got, expected in (
        (batch.token_ids, TOKENS),
        (batch.query_start_loc, STARTS),
        (batch.history, HISTORY),
    ):
        assert got.is_contiguous()
        assert not got.is_neg()
        assert torch.equal(got, expected)


def test_tensors_that_fit_are_not_copied() -> None:
    batch = FlatBatch.checked(2, TOKENS, STARTS, HISTORY)
    assert batch.history is not None
    assert batch.token_ids.data_ptr() == TOKENS.data_ptr()
    assert batch.query_start_loc.data_ptr() == STARTS.data_ptr()
    assert batch.history.data_ptr() == HISTORY.data_ptr()
    assert batch.to(torch.device("cpu")) is batch


@pytest.mark.parametrize("name", ["token_ids", "query_start_loc", "history"])
def test_the_core_gets_no_address_of_a_batch_that_was_put_together_wrong(name: str) -> None:
    tensors = {"token_ids": TOKENS, "query_start_loc": STARTS, "history": HISTORY}
    assert FlatBatch(**tensors).addresses()[2] == 12
    with pytest.raises(AssertionError):
        FlatBatch(**tensors | {name: VIEWS["with gaps"](tensors[name])}).addresses()
    with pytest.raises(AssertionError):
        FlatBatch(*(tensor.to("meta") for tensor in tensors.values())).addresses()


def test_a_batch_gives_each_table_the_newest_of_its_history() -> None:
    batch = gramary.Batch(TOKENS[:6], STARTS, history=HISTORY)
    assert torch.equal(batch.flat(2).history, HISTORY)
    assert torch.equal(batch.flat(1).history, HISTORY[:, 1:])
    assert batch.flat(1).history.is_contiguous()
    assert gramary.Batch(TOKENS[:6], STARTS).flat(1).history is None


# Where tensors travel loose, and why: all else takes a `FlatBatch`.
LOOSE = {
    "flat_batch.py": "makes the batch",
    "table.py": "public",
    "ops/hash.py": "public",
    "layer/module.py": "calls the public `Table.embed`, which compilers may see",
    "ops/opaque.py": "an operation that compilers see takes tensors alone",
    "ops/reference/hash.py": "the public operation's twin",
    "ops/reference/embed.py": "the public operation's twin",
    "integrations/vllm/feed.py": "vLLM passes its tensors; it makes a `Batch` of them",
    "offload/memory/region.py": "writes the fields into shared memory",
}


def test_below_the_public_calls_a_batch_travels_whole() -> None:
    package = Path(gramary.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names = {argument.arg for argument in node.args.args}
                if {"token_ids", "query_start_loc", "history"} <= names:
                    found.add(str(path.relative_to(package)))
    assert found == set(LOOSE)
