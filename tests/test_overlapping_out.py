"""Kind 22: a result buffer that shares memory with an argument is refused, never read as one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gramary
from gramary import Connector, Table
from gramary.errors import ArgumentError
from gramary.ops.result_buffer import end_of

NUM_TOKENS = 6
# Where the result buffer begins in a piece of memory.
BEGIN = 4096


def overlapping(size: int, out: int) -> list[int]:
    """Returns where an argument of `size` bytes begins that meets a buffer of `out` bytes."""
    middle = out // 16 * 8 - size // 16 * 8
    return [BEGIN + first for first in (0, min(64, out - 8), 8 - size, out - 8, middle)]


def apart(size: int, out: int) -> list[int]:
    """The same for one that lies just before it, just behind it, or far away."""
    return [BEGIN - -(-size // 8) * 8, BEGIN + out, 4 * BEGIN]


@pytest.fixture(scope="module", params=["host", "disk", "host=20KiB,disk"])
def table(request: pytest.FixtureRequest, make_checkpoint: Callable[..., Any]) -> Iterator[Table]:
    """A table at each kind of placement."""
    with Table.open(make_checkpoint(codec="bf16"), placement=request.param) as opened:
        yield opened


def arguments_of(table: Table, operation: str) -> dict[str, torch.Tensor]:
    """Returns an operation's arguments, by name."""
    if operation == "lookup":
        return {"row_ids": torch.arange(4 * NUM_TOKENS).view(4, -1)}
    history = torch.arange(2 * table.spec.history_length).view(2, -1)
    starts = torch.tensor([0, 2, NUM_TOKENS], dtype=torch.int32)
    tokens = torch.arange(10, 10 + NUM_TOKENS, dtype=torch.int32)
    return {"token_ids": tokens, "query_start_loc": starts, "history": history}


def run(table: Table, operation: str, arguments: dict[str, Any], **out: Any) -> torch.Tensor:
    """Returns what an operation gives."""
    if operation == "ngram_ids":
        return gramary.ngram_ids(table.spec, *arguments.values(), **out)
    return getattr(table, operation)(*arguments.values(), **out)


def laid_out(
    like: torch.Tensor, argument: torch.Tensor, first: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a buffer like a result and an argument with its numbers, in one piece of memory."""
    arena = torch.zeros(8 * BEGIN, dtype=torch.uint8, device=like.device)
    out = arena[BEGIN : BEGIN + like.nbytes].view(like.dtype).view(like.shape)
    moved = arena[first : first + argument.nbytes].view(argument.dtype).view(argument.shape)
    moved.copy_(argument)
    return out, moved


OPERATIONS = [("ngram_ids", name) for name in ("token_ids", "query_start_loc", "history")]
OPERATIONS += [("embed", name) for _, name in OPERATIONS] + [("lookup", "row_ids")]


@pytest.mark.parametrize(("operation", "name"), OPERATIONS)
def test_kind_22_every_overlap_is_refused_by_name_and_nothing_else_is(
    table: Table, operation: str, name: str
) -> None:
    """Kind 22: whole and partial, at either end; memory that only touches is fine."""
    arguments = arguments_of(table, operation)
    expected = run(table, operation, arguments)
    sizes = (arguments[name].nbytes, expected.nbytes)
    for first in overlapping(*sizes):
        out, moved = laid_out(expected, arguments[name], first)
        with pytest.raises(ArgumentError, match=rf"out: .*shares memory with {name}"):
            run(table, operation, arguments | {name: moved}, out=out)
        assert torch.equal(moved, arguments[name])
    for first in apart(*sizes):
        out, moved = laid_out(expected, arguments[name], first)
        assert torch.equal(run(table, operation, arguments | {name: moved}, out=out), expected)


@pytest.mark.parametrize("operation", ["ngram_ids", "embed"])
def test_kind_22_a_view_with_gaps_is_refused_only_where_it_has_an_element(
    table: Table, operation: str
) -> None:
    """Kind 22: a history in the columns of a wider tensor, the buffer in others of its columns."""
    arguments = arguments_of(table, operation)
    expected = run(table, operation, arguments)
    width = arguments["history"].shape[1]
    wide = torch.zeros(2, 4096, dtype=torch.int64)
    history = wide[:, :width]
    history.copy_(arguments["history"])
    bytes_of = wide.view(torch.uint8).flatten()
    for first, is_apart in ((8 * width, True), (8 * width - 8, False), (32768 - 8, False)):
        out = bytes_of[first : first + expected.nbytes].view(expected.dtype).view(expected.shape)
        if is_apart:
            got = run(table, operation, arguments | {"history": history}, out=out)
            assert torch.equal(got, expected)
            continue
        with pytest.raises(ArgumentError, match="shares memory with history"):
            run(table, operation, arguments | {"history": history}, out=out)


def test_kind_22_ids_that_are_one_element_many_times_are_looked_at_once(table: Table) -> None:
    """Kind 22: an expanded view."""
    expected = table.lookup(torch.tensor([3])).expand(5000, -1).contiguous()
    buffer = torch.zeros(expected.numel() + 4, dtype=expected.dtype)
    ids = buffer[-4:].view(torch.int64)
    ids.fill_(3)
    out = buffer[:-4].view(expected.shape)
    assert torch.equal(table.lookup(ids.expand(5000), out=out), expected)
    inside = buffer[8:12].view(torch.int64).expand(5000)
    with pytest.raises(ArgumentError, match="shares memory with row_ids"):
        table.lookup(inside, out=out)


def test_kind_22_one_that_watches_operations_is_refused_too(table: Table) -> None:
    """Kind 22: under a dispatch mode the lookup is an opaque operation."""

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    arguments = arguments_of(table, "lookup")
    expected = table.lookup(arguments["row_ids"])
    out, moved = laid_out(expected, arguments["row_ids"], BEGIN)
    with Watching(), pytest.raises(ArgumentError, match="shares memory with row_ids"):
        table.lookup(moved, out=out)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (4,), (2, 3)])
@pytest.mark.parametrize("step", [1, 3])
def test_kind_22_the_end_of_a_tensor_is_that_of_its_last_element(
    shape: tuple[int, ...], step: int
) -> None:
    """Kind 22: what the cheap comparison rests on."""
    whole = torch.zeros(*shape[:-1], shape[-1] * step, dtype=torch.int32)
    tensor = whole[..., ::step]
    last = tensor[(-1,) * len(shape)].data_ptr() + 4 if tensor.numel() else tensor.data_ptr()
    assert end_of(tensor) == last


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["device", "host", "disk"])
def test_kind_22_overlaps_are_refused_on_a_gpu(
    make_checkpoint: Callable[..., Any], placement: str
) -> None:
    """Kind 22: by the same rule, in a connector's wait too where the GPU reads the tokens then."""
    folder = make_checkpoint(codec="bf16")
    with Table.open(folder, placement=placement, device="cuda") as table:
        for operation, name in OPERATIONS:
            arguments = {k: v.cuda() for k, v in arguments_of(table, operation).items()}
            expected = run(table, operation, arguments)
            for first in overlapping(arguments[name].nbytes, expected.nbytes):
                out, moved = laid_out(expected, arguments[name], first)
                with pytest.raises(ArgumentError, match=f"shares memory with {name}"):
                    run(table, operation, arguments | {name: moved}, out=out)
    if placement != "device":
        return
    with (
        Table.open(folder, placement=placement, device="cuda") as table,
        Connector(table, max_tokens=NUM_TOKENS) as connector,
    ):
        arguments = {k: v.cuda() for k, v in arguments_of(table, "embed").items()}
        expected = run(table, "embed", arguments)
        buffer = torch.zeros_like(expected)
        tokens = buffer.view(torch.int32).flatten()[:NUM_TOKENS]
        tokens.copy_(arguments["token_ids"])
        ticket = connector.request(gramary.Batch(**arguments | {"token_ids": tokens}))
        with pytest.raises(ArgumentError, match="shares memory with token_ids"):
            connector.wait(ticket, out=buffer)
        assert torch.equal(connector.wait(ticket), expected)
