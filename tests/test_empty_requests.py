"""Kind 23: the history of a request without tokens is never looked at, whoever reads a batch."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from offload_stage import make_batch, make_table

import gramary
from gramary import Batch, Connector, Settings, Table
from gramary.errors import RowFetchError, RowIdError, TokenError
from gramary.ops.reference.hash import ngram_ids_ref

LENGTHS = (0, 5, 0, 0, 3, 0)
FOREIGN = (97, -1, 2**40, -(2**63))

Reader = Callable[[Table, Batch], torch.Tensor]


def embed(table: Table, batch: Batch) -> torch.Tensor:
    """Rows by the table's own call."""
    return table.embed(batch.token_ids, batch.query_start_loc, batch.history)


def by_ids(table: Table, batch: Batch) -> torch.Tensor:
    """Rows by their ids."""
    tensors = (batch.token_ids, batch.query_start_loc, batch.history)
    row_ids = gramary.ngram_ids(table.spec, *tensors)
    return table.lookup(row_ids).view(batch.num_tokens, -1)


def by_reference(table: Table, batch: Batch) -> torch.Tensor:
    """Rows by the ids of the plain Python hash."""
    tensors = (batch.token_ids, batch.query_start_loc, batch.history)
    return table.lookup(ngram_ids_ref(table.spec, *tensors)).view(batch.num_tokens, -1)


def by_connector(lane: str, worker: str) -> Reader:
    """Rows by a lane of a connector."""

    def read(table: Table, batch: Batch) -> torch.Tensor:
        settings = Settings(force_doorbell=True, num_threads=1)
        with Connector(table, max_tokens=16, worker=worker, settings=settings) as connector:
            rows = connector.wait(connector.request(batch))
            if rows.is_cuda:
                # A connector that closes gives up what its stream still waits for.
                torch.cuda.synchronize()
            connector.check()
            (taken,) = connector.stats()["lanes"]
            assert taken.startswith(lane)
            return rows

    return read


READERS: dict[str, Reader] = {
    "Table.embed": embed,
    "ngram_ids": by_ids,
    "reference": by_reference,
    "host lane": by_connector("host", "thread"),
    "stream lane": by_connector("stream", "thread"),
    "host lane of a process": by_connector("host", "process"),
}


def batch_for(reader: str, device: str = "cpu") -> Batch:
    """Returns a batch with empty requests among others, for a lane of a connector or any reader."""
    batch = make_batch(3, lengths=LENGTHS, prefill="host" in reader)
    if device == "cpu":
        return batch
    tensors = (batch.token_ids, batch.query_start_loc, batch.history)
    tokens, starts, history = (tensor.to(device) for tensor in tensors)
    return Batch(tokens, starts, history=history, is_prefill=batch.is_prefill)


def with_history(batch: Batch, requests: list[int], value: int) -> Batch:
    """Returns a batch with another history for some requests."""
    history = batch.history.clone()
    history[requests] = value
    return dataclasses.replace(batch, history=history)


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    """A table in host memory."""
    with make_table() as opened:
        yield opened


@pytest.mark.parametrize("reader", READERS)
def test_kind_23_an_empty_requests_history_may_hold_anything(table: Table, reader: str) -> None:
    """Kind 23: no error, and the rows of the others."""
    read, batch = READERS[reader], batch_for(reader)
    expected = embed(table, batch)
    values = FOREIGN[-1:] if "process" in reader else FOREIGN
    for value in values:
        assert torch.equal(read(table, with_history(batch, [0, 2, 3, 5], value)), expected)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("request_index", [1, 4])
def test_kind_23_a_wrong_history_of_one_with_tokens_is_named(
    table: Table, reader: str, request_index: int
) -> None:
    """Kind 23: the same rule does not let real ones through."""
    if "process" in reader:
        pytest.skip("its tokens are checked before they reach it")
    batch = with_history(batch_for(reader), [0, request_index], 97)
    if reader == "reference":
        with pytest.raises(TokenError):
            READERS[reader](table, batch)
        return
    where = rf"history\[{2 * request_index}\]|index \[{request_index}, 0\]"
    with pytest.raises(TokenError, match=where):
        READERS[reader](table, batch)


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["device", "host"])
@pytest.mark.parametrize("reader", ["Table.embed", "ngram_ids", "host lane", "stream lane"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kind_23_an_empty_requests_history_may_hold_anything_on_a_gpu(
    placement: str, reader: str, device: str
) -> None:
    """Kind 23: with a batch on either device, and a real one's wrong history is found."""
    if (placement == "device" and "lane" in reader) or (reader, device) == ("host lane", "cuda"):
        pytest.skip("no such lane")
    if reader == "ngram_ids" and device == "cpu":
        pytest.skip("the CPU's ids")
    batch = batch_for(reader, device)
    with make_table(placement=placement, device="cuda") as table:
        read = READERS[reader]
        expected = read(table, batch)
        for value in FOREIGN:
            assert torch.equal(read(table, with_history(batch, [0, 2, 3, 5], value)), expected)
        table.check()
    table = make_table(placement=placement, device="cuda")

    def read_wrong() -> None:
        READERS[reader](table, with_history(batch, [4], 97))
        table.check()

    with pytest.raises((TokenError, RowIdError, RowFetchError)):
        read_wrong()
    with contextlib.suppress(TokenError):
        table.close()
