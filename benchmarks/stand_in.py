"""A stand-in for a model's stage: dense layers around the real PLE layer, and a table for it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.gpu_full_table import full_spec
from benchmarks.receipts.targets import Target
from benchmarks.table_folder import formula_shards, write_table_folder
from gramary import Batch, Connector, PLELayer, Table
from gramary.layer.geometry import PLEGeometry
from gramary.layer.state import PLEState
from gramary.offload.ticket import Ticket

STREAMS = 4

# The candidates, by whether a chunk's rows are requested while the one before computes.
OPTIONS = {False: "early requests off", True: "early requests on"}


@dataclasses.dataclass(frozen=True)
class StageSize:
    """How much the stand-in computes.

    Attributes:
        device: where it computes, "cpu" or "cuda".
        hidden_size: width of one of its four residual streams.
        num_layers: dense layers; the PLE layer stands behind the first.
        chunk_tokens: tokens of a forward.
        num_chunks: forwards of a prompt.
        is_graphed: whether the layers behind the PLE layer are one CUDA graph, so that short chunks
            are not as long as the host takes to launch them.
    """

    device: str
    hidden_size: int
    num_layers: int
    chunk_tokens: int
    num_chunks: int
    is_graphed: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and activations: CPUs without bf16 units would take ages."""
        return torch.float32 if self.device == "cpu" else torch.bfloat16


# The longest that any chunk may wait, in microseconds, for warm rows that were requested early.
WARM_LIMIT = Target(500, of="maximum")
# 40 to 80 ms a chunk on an H200.
REAL_SIZE = StageSize("cuda", hidden_size=2560, num_layers=48, chunk_tokens=8192, num_chunks=8)


class Spans(Protocol):
    """Where the stage's own work is noted."""

    def span(self, name: str) -> contextlib.AbstractContextManager[object]:
        """Returns a block whose time becomes a span."""


class GraphedLayers:
    """Layers captured in a CUDA graph.

    Args:
        layers: what is captured, from hidden states to hidden states.
        example: hidden states of the shape that all calls have.
    """

    def __init__(
        self, layers: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor
    ) -> None:
        self._input = example.clone()
        layers(self._input)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = layers(self._input)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns what the layers make of hidden states, in memory of its own."""
        self._input.copy_(hidden)
        self._graph.replay()
        return self._output.clone()


class StandIn:
    """The stage; weights from a seed."""

    def __init__(self, size: StageSize, table: Table) -> None:
        self.size = size
        generator = torch.Generator(size.device).manual_seed(0)
        options: dict[str, Any] = {"device": size.device, "dtype": size.dtype}

        def weight(*shape: int) -> torch.Tensor:
            return 0.01 * torch.randn(*shape, generator=generator, **options)

        width = STREAMS * size.hidden_size
        self.down, self.up = weight(width, size.hidden_size), weight(size.hidden_size, width)
        geometry = PLEGeometry(table.spec, STREAMS, size.hidden_size, kernel_size=4, eps=1e-6)
        self.ple = PLELayer(geometry, **options)
        with torch.no_grad():
            for parameter in self.ple.parameters():
                parameter.copy_(weight(*parameter.shape))
        self.inputs = weight(size.chunk_tokens, width) * 100
        self._behind = (
            GraphedLayers(self._layers_behind, self.inputs) if size.is_graphed
            else self._layers_behind
        )  # fmt: skip

    def new_state(self) -> PLEState:
        """Returns the state of one fresh request."""
        return self.ple.new_state(1)

    def forward(
        self, chunk: Batch, state: PLEState, take: Callable[[], torch.Tensor], spans: Spans
    ) -> torch.Tensor:
        """Runs one chunk, whose rows `take` gives, and returns the residual streams."""
        device = self.size.device
        tokens, starts = chunk.token_ids.to(device), chunk.query_start_loc.to(device)
        with spans.span("dense layers"):
            hidden = self._dense(self.inputs[: len(tokens)])
        rows = take()
        with spans.span("PLE layer"):
            hidden = self.ple(hidden, tokens, starts, state=state, rows=rows, add_residual=True)
        with spans.span("dense layers"):
            return self._behind(hidden)

    def _layers_behind(self, hidden: torch.Tensor) -> torch.Tensor:
        for _ in range(self.size.num_layers - 1):
            hidden = self._dense(hidden)
        return hidden

    def _dense(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.addmm(hidden, hidden @ self.down, self.up)


def chunks_of_prompt(size: StageSize, table: Table) -> list[Batch]:
    """Returns the forwards of one long prompt of uniform random tokens."""
    generator = torch.Generator().manual_seed(1)
    length = size.chunk_tokens * size.num_chunks
    prompt = torch.randint(table.spec.vocab_size, (length,), generator=generator)
    return [
        Batch.from_prompts(table.spec, [prompt], [start], [size.chunk_tokens])
        for start in range(0, length, size.chunk_tokens)
    ]


def in_turns(repeats: int) -> Iterator[bool]:
    """Yields off and on (whether requests are early), each so often, in alternating order."""
    for turn in range(repeats):
        yield from (False, True) if turn % 2 == 0 else (True, False)


def tickets_of(connector: Connector, chunks: Sequence[Batch], early: bool) -> Iterator[Ticket]:
    """Yields each chunk's ticket in its turn; early, the next one is requested before."""
    if not early:
        # The forward before is over.
        yield from map(connector.request, chunks)
        return
    ticket = connector.request(chunks[0])
    for following in chunks[1:]:
        ahead = connector.request(following)
        yield ticket
        ticket = ahead
    yield ticket


def files_of(table: Table) -> list[str]:
    """Returns the files that hold a table's rows on disk."""
    disk = table.residency.disk
    return [file.path for file in disk.layout.files] if disk else []


def require_same_outputs(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> int:
    """Compares what two runs gave behind every chunk, bit by bit; returns how many values.

    Raises:
        AssertionError: a value differs or is not finite; names the chunk.
    """
    for chunk, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        width = {2: torch.int16, 4: torch.int32}[one.element_size()]
        num_different = int((one.view(width) != other.view(width)).sum())
        if num_different or not one.isfinite().all():
            raise AssertionError(f"chunk {chunk}: {num_different} values differ, or are not finite")
    return sum(output.numel() for output in ours)


def write_model(path: Path, base: int) -> Path:
    """Writes the folder of the stand-in's model: its table, of the published width.

    Args:
        path: the folder, which exists.
        base: rows of each of the 16 heads, about.
    """
    spec = full_spec(base)
    return write_table_folder(path, spec, formula_shards(spec, 16, "cpu"))
