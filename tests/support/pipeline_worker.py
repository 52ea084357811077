"""One stage of a pipeline over a stand-in model with a real PLE layer, prompts in chunks.

    python pipeline_worker.py BACKEND RANK SIZE FOLDER OUT

Run by tests/test_pipeline_distributed.py, once a rank; with SIZE 1 the one stage is the whole
model. The last stage writes hidden states and tokens to OUT; every stage prints the tables it
opened and the lanes its batches took.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gramary import Batch, Connector, HashSpec, PLELayer, Settings, Table
from gramary.layer import PLEGeometry, PLEState
from gramary.pipeline import ple_layers_of_stage

NUM_LAYERS, NUM_STEPS, CHUNK = 6, 4, 12
STREAMS, HIDDEN = 4, 64
PROMPT_LENGTHS = (40, 7, 29)
LAYER_RANGES = {1: [(0, 6)], 2: [(0, 2), (2, 6)]}


class Stage:
    """The layers of one rank: dense ones, and the PLE layer where it owns it."""

    def __init__(self, folder: Path, bounds: tuple[int, int], device: torch.device) -> None:
        self.bounds, self.device = bounds, device
        generator = torch.Generator().manual_seed(3)

        def weight(*shape: int) -> torch.Tensor:
            return (0.2 * torch.randn(shape, generator=generator)).to(device, torch.bfloat16)

        spec = HashSpec.from_config(folder)
        geometry = PLEGeometry(spec, STREAMS, HIDDEN, kernel_size=4, eps=1e-6)
        # Every rank draws the whole model, so that each has the weights of the others.
        self.embedding = weight(spec.vocab_size, HIDDEN)
        self.dense = [weight(HIDDEN * STREAMS, HIDDEN * STREAMS) for _ in range(NUM_LAYERS)]
        ple = PLELayer(geometry, device=device)
        for parameter in ple.parameters():
            parameter.copy_(weight(*parameter.shape))
        owned = ple_layers_of_stage(folder, *bounds)
        self.tables = [Table.open(folder, device=device, table_index=index) for index in owned]
        self.ple = ple if owned else None
        self.decoder_layer = spec.decoder_layer
        self.connector: Connector | None = None
        if self.tables:
            max_tokens = CHUNK * len(PROMPT_LENGTHS)
            # However small a batch is, it rings: on a GPU it would read so few rows by itself.
            settings = Settings.from_env(force_doorbell=True)
            self.connector = Connector(self.tables, max_tokens=max_tokens, settings=settings)

    def forward(
        self, hidden: torch.Tensor, batch: Batch, state: PLEState | None, ticket: object
    ) -> torch.Tensor:
        """Runs this stage's layers over the residual streams [T, streams * hidden]."""
        tokens, starts = (t.to(self.device) for t in (batch.token_ids, batch.query_start_loc))
        for layer in range(*self.bounds):
            if self.ple is not None and layer == self.decoder_layer:
                rows = self.connector.wait(ticket)
                hidden = self.ple(hidden, tokens, starts, state=state, rows=rows, add_residual=True)
            hidden = hidden + nn.functional.silu(hidden @ self.dense[layer])
        return hidden


def chunks_of_prompts(spec: HashSpec) -> list[Batch]:
    """Returns the forwards of the prefill: up to CHUNK tokens of each prompt, some run out."""
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(spec.vocab_size, (n,), generator=generator) for n in PROMPT_LENGTHS]
    batches = []
    for start in range(0, max(PROMPT_LENGTHS), CHUNK):
        starts = [min(start, length) for length in PROMPT_LENGTHS]
        lengths = [min(CHUNK, length - s) for s, length in zip(starts, PROMPT_LENGTHS, strict=True)]
        batches.append(Batch.from_prompts(spec, prompts, starts, lengths))
    return batches


class Rank:
    """A stage and its neighbours."""

    def __init__(self, rank: int, size: int, stage: Stage, spec: HashSpec) -> None:
        self.rank, self.size, self.stage, self.spec = rank, size, stage, spec
        self.state = stage.ple.new_state(len(PROMPT_LENGTHS)) if stage.ple else None
        self.seen: list[torch.Tensor] = []

    def run(self, batch: Batch, ticket: object) -> torch.Tensor:
        """Returns the stage's output; takes its input from the stage before."""
        shape = (batch.num_tokens, STREAMS * HIDDEN)
        if self.rank == 0:
            hidden = self.stage.embedding[batch.token_ids.to(self.stage.device)].repeat(1, STREAMS)
        else:
            hidden = torch.empty(shape, dtype=torch.bfloat16, device=self.stage.device)
            dist.recv(hidden, self.rank - 1)
        hidden = self.stage.forward(hidden, batch, self.state, ticket)
        if self.rank + 1 < self.size:
            dist.send(hidden, self.rank + 1)
        else:
            self.seen.append(hidden)
        return hidden

    def prefill(self) -> torch.Tensor:
        """Runs the prompts, each forward's rows requested before the forward ahead of it."""
        connector, batches = self.stage.connector, chunks_of_prompts(self.spec)
        last = torch.zeros(len(PROMPT_LENGTHS), STREAMS * HIDDEN, dtype=torch.bfloat16)
        last = last.to(self.stage.device)
        ticket = connector.request(batches[0]) if connector else None
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            early = connector.request(following) if connector and following else None
            hidden = self.run(batch, ticket)
            ends = batch.query_start_loc[1:].long()
            grew = (ends > batch.query_start_loc[:-1]).nonzero().flatten()
            last[grew] = hidden[ends[grew] - 1]
            ticket = early
        return last

    def decode(self, last: torch.Tensor) -> list[torch.Tensor]:
        """Writes tokens: the last stage picks them, and every stage is told."""
        written = []
        starts = torch.arange(len(PROMPT_LENGTHS) + 1, dtype=torch.int32, device=self.stage.device)
        for _ in range(NUM_STEPS):
            mixed = last.unflatten(1, (STREAMS, HIDDEN)).sum(1)
            tokens = (mixed @ self.stage.embedding.T).argmax(1)
            if self.size > 1:
                dist.broadcast(tokens, self.size - 1)
            written.append(tokens)
            history = self.state.history() if self.state else None
            batch = Batch(tokens, starts, history=history)
            ticket = self.stage.connector.request(batch) if self.stage.connector else None
            last = self.run(batch, ticket)
        return written


def main(backend: str, rank: int, size: int, folder: Path, out: Path) -> None:
    """Runs one rank to its end."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    if size > 1:
        store = f"file://{out}.store"
        dist.init_process_group(backend, init_method=store, rank=rank, world_size=size)
    spec = HashSpec.from_config(folder)
    stage = Stage(folder, LAYER_RANGES[size][rank], device)
    with torch.no_grad():
        ranked = Rank(rank, size, stage, spec)
        tokens = ranked.decode(ranked.prefill())
    lanes = stage.connector.stats()["lanes"] if stage.connector else {}
    if rank + 1 == size:
        torch.save(
            {"hidden": torch.cat(ranked.seen).cpu(), "tokens": torch.stack(tokens).cpu()}, out
        )
    if stage.connector:
        stage.connector.close()
    for table in stage.tables:
        table.close()
    if size > 1:
        dist.destroy_process_group()
    sys.stdout.write(json.dumps({"tables": len(stage.tables), "lanes": lanes}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]))
