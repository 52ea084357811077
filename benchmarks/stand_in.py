"""A stand-in for a model's stage: dense layers around the real PLE layer, and a table for it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from benchmarks.gpu_full_table import full_spec, rows_by_formula
from gramary import Batch, PLELayer, Table
from gramary.layer.geometry import PLEGeometry
from gramary.layer.state import PLEState

STREAMS = 4


@dataclasses.dataclass(frozen=True)
class StageSize:
    """How much the stand-in computes.

    Attributes:
        device: where it computes, "cpu" or "cuda".
        hidden_size: width of one of its four residual streams.
        num_layers: dense layers; the PLE layer stands behind the first.
        chunk_tokens: tokens of a forward.
        num_chunks: forwards of a prompt.
    """

    device: str
    hidden_size: int
    num_layers: int
    chunk_tokens: int
    num_chunks: int

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and activations: CPUs without bf16 units would take ages."""
        return torch.float32 if self.device == "cpu" else torch.bfloat16


class Spans(Protocol):
    """Where the stage's own work is noted."""

    def span(self, name: str) -> contextlib.AbstractContextManager[object]:
        """Returns a block whose time becomes a span."""


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


def write_model(path: Path, base: int, num_shards: int = 16) -> Path:
    """Writes a model's folder that holds an fp8 table of the real width and nothing else.

    Args:
        path: the folder, which exists.
        base: rows of each of the 16 heads, about.
        num_shards: parts of the table.
    """
    spec = full_spec(base)
    prefix = "model.layers.1.ple.ple_embedding."
    each = -(-spec.num_rows // num_shards)
    # No code of the formula's bytes may be NaN: 0x7F and 0xFF.
    tensors = {
        f"{prefix}ngram_embedding.shard_{index}.weight": (
            rows_by_formula(torch.arange(index * each, min((index + 1) * each, spec.num_rows)))
            .bitwise_and(0xB7)
            .view(torch.float8_e4m3fn)
        )
        for index in range(num_shards)
    }
    tensors |= {
        f"{prefix}layer_multipliers": torch.tensor(spec.multipliers),
        f"{prefix}ngram_heads_vocab_sizes": torch.tensor(spec.sizes),
        f"{prefix}ngram_heads_offsets": torch.tensor(spec.offsets),
        f"{prefix}ngram_embedding.weight_scale": torch.tensor(2.0**-4),
    }
    save_file(tensors, path / "model.safetensors")
    config = {
        "model_type": "qwen4_exp_text", "num_hidden_layers": 2, "ple_layer_ids": [2],
        "vocab_size": spec.vocab_size, "eos_token_id": spec.eos_token_id,
        "ngram_size": spec.ngram_size, "heads_per_ngram": spec.heads_per_ngram,
        "hidden_size": spec.embed_dim, "ple_embed_dim": spec.embed_dim,
        "ngram_vocab_size_base": base, "seed": spec.seed, "split_ngram_parts": num_shards,
        "make_ngram_vocab_size_divisible_by": spec.rows_multiple,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return path
