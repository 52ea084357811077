"""vLLM's own hash, gather and dequantise, called as its model code calls them.

Only public functions of `vllm.models.qwen4_exp.common` are used; nothing runs where it is not
installed.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch

from gramary.model.hashing import HashSpec

PACKAGE = "vllm.models.qwen4_exp.common"


class VllmChain:
    """Tokens to bfloat16 rows by vLLM's kernels, over an fp8 table of ours.

    Args:
        spec: geometry of the table.
        scale: its scale.
        rows: uint8 [num_rows, 160], on the device, or in registered host memory.
        num_tokens: tokens of a batch.

    Raises:
        ImportError: vLLM, or a version with this model, is not installed.
    """

    def __init__(self, spec: HashSpec, scale: float, rows: torch.Tensor, num_tokens: int) -> None:
        self._ngram_ids = importlib.import_module(f"{PACKAGE}.ops.ple").ple_ngram_ids
        embedding: Any = importlib.import_module(f"{PACKAGE}.ngram_embedding")
        self._method = embedding.Qwen4ExpPLEFp8EmbeddingMethod()
        self._is_on_device = rows.is_cuda
        whole = SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=spec.num_rows)
        self._layer = SimpleNamespace(
            weight=rows.view(torch.float8_e4m3fn),
            weight_scale=torch.tensor(scale, device="cuda"),
            embedding_dim=spec.row_dim,
            shard_indices=whole,
            _uva_weight=rows,
        )
        self._constants = [
            torch.tensor(values, dtype=torch.int64, device="cuda")
            for values in (spec.multipliers, spec.sizes, spec.offsets)
        ]
        self._eos_token_id, self._heads = spec.eos_token_id, spec.heads_per_ngram
        shape = (num_tokens, spec.num_heads)
        self._ids = torch.empty(shape, dtype=torch.int64, device="cuda")
        self._rows = torch.empty((*shape, spec.row_dim), dtype=torch.float8_e4m3fn, device="cuda")

    def ngram_ids(
        self, token_ids: torch.Tensor, starts: torch.Tensor, history: torch.Tensor
    ) -> torch.Tensor:
        """Returns the row ids of a batch, int64 [T, num_heads]."""
        return self._ngram_ids(
            token_ids, starts, history, *self._constants, self._eos_token_id, self._heads, self._ids
        )

    def embed(
        self, token_ids: torch.Tensor, starts: torch.Tensor, history: torch.Tensor
    ) -> torch.Tensor:
        """Returns the rows of a batch, bfloat16 [T, num_heads, row_dim]."""
        ids = self.ngram_ids(token_ids, starts, history)
        if self._is_on_device:
            rows = self._method.embedding(self._layer, ids)
        else:
            rows = self._rows
            self._method.lookup_from_pinned(self._layer, ids.view(-1), rows)
        return self._method.dequantize(self._layer, rows, torch.bfloat16)


def is_installed() -> bool:
    """Returns whether vLLM's model code can be imported."""
    try:
        importlib.import_module(f"{PACKAGE}.ops.ple")
    except ImportError:
        return False
    return True
