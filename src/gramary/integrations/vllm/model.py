"""vLLM's Qwen4-Exp models without a table of their own: their rows come from gramary.

vLLM imports this in processes that build a model, and in one that inspects the classes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.custom_op import op_registry_oot
from vllm.models.qwen4_exp.common.ngram_embedding import Qwen4ExpPLEDeviceEmbedding
from vllm.models.qwen4_exp.nvidia.model import (
    Qwen4ExpForCausalLM,
    Qwen4ExpForConditionalGeneration,
)

from gramary.integrations.vllm.options import chosen
from gramary.integrations.vllm.rows import PLERows
from gramary.integrations.vllm.state import StateWithRows

_SHARD = ".ple_embedding.ngram_embedding.shard_"


class TableElsewhere(Qwen4ExpPLEDeviceEmbedding):
    """Stands where vLLM keeps a table; allocates nothing, and passes decoded rows on."""

    def __init__(self, _num_rows: int, embedding_dim: int, **_: Any) -> None:
        torch.nn.Module.__init__(self)
        # vLLM logs its dtype and device.
        self.weight = torch.empty(0, embedding_dim, dtype=torch.uint8, device="cpu")

    def dequantize(self, embeddings: torch.Tensor, _: torch.dtype) -> torch.Tensor:
        """Returns the rows as they are: gramary decoded them to the activations' dtype."""
        return embeddings


@contextlib.contextmanager
def no_table() -> Iterator[None]:
    """Has vLLM build PLE layers without a table, in a block.

    vLLM's layers of this base class can be replaced by name; the name is free again afterwards, for
    an engine in this process that gramary does not serve.
    """
    name = Qwen4ExpPLEDeviceEmbedding.__name__
    before = op_registry_oot.get(name)
    op_registry_oot[name] = TableElsewhere
    try:
        yield
    finally:
        if before is None:
            del op_registry_oot[name]
        else:
            op_registry_oot[name] = before


class RowsFromGramary:
    """What both models have in common; it stands before vLLM's class among the bases."""

    ple_rows: tuple[PLERows, ...] = ()
    _is_asked = False

    # vLLM looks for these two parameters.
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        if chosen(vllm_config.additional_config) is None:
            super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
            return
        with no_table():
            super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self._is_asked = True
        text_model: Any = getattr(self, "language_model", self)
        rows = []
        for layer in text_model.model.layers:
            ple = getattr(layer, "ple", None)
            if ple is not None:
                ple.ple_embedding = PLERows(ple.ple_embedding, ple.ple_dense_layer_id)
                rows.append(ple.ple_embedding)
        # A tuple: as submodules of this one their weights would have two names.
        self.ple_rows = tuple(rows)

    def get_model_state_cls(self) -> type[Any]:
        """Returns the class that vLLM's runner makes with this model."""
        return StateWithRows if self._is_asked else super().get_model_state_cls()  # type: ignore[misc]

    def is_unused_checkpoint_weight(self, name: str) -> bool:
        """Returns whether a loader passes over a tensor, so that it is never read."""
        return self._is_asked and _SHARD in name


class Qwen4ExpForCausalLMWithRows(RowsFromGramary, Qwen4ExpForCausalLM):
    """The text model."""


class Qwen4ExpForConditionalGenerationWithRows(RowsFromGramary, Qwen4ExpForConditionalGeneration):
    """The model that also sees images."""


__all__ = ["Qwen4ExpForCausalLMWithRows", "Qwen4ExpForConditionalGenerationWithRows"]
