"""The truth of the stories, and an engine that waits longer on a loaded machine."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from small_engine import TINY, Engine
from transformers import DynamicCache, Qwen4ExpForCausalLM

from gramary import Settings

# A loaded machine may take its time.
SETTINGS = Settings(request_timeout_s=60)
PatientEngine = functools.partial(Engine, settings=SETTINGS)


def greedy(logits: torch.Tensor) -> int:
    """Returns the likeliest token."""
    return int(logits.argmax(-1))


class Oracle:
    """transformers' own model with an `nn.Embedding` of the table's decoded rows."""

    def __init__(self, device: str, dtype: torch.dtype, rows: torch.Tensor) -> None:
        self.model = Qwen4ExpForCausalLM.from_pretrained(TINY, dtype=dtype)
        with torch.no_grad():
            self.model.model.layers[1].ple.ple_embedding.ngram_embedding.weight.copy_(rows)
        self.model.to(device)
        self.device = device

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Returns float32 logits [N, V] of one request, its tokens one after the other."""
        cache = DynamicCache(config=self.model.config)
        steps = []
        for token in tokens:
            ids = torch.tensor([[token]], device=self.device)
            steps.append(self.model(input_ids=ids, cache=cache, use_cache=True).logits[0, -1])
        return torch.stack(steps).float().cpu()

    def continue_greedily(self, prompt: Sequence[int], count: int) -> list[int]:
        """Returns the `count` likeliest next tokens."""
        ids = torch.tensor([list(prompt)], device=self.device)
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
        )
        return out[0, len(prompt) :].tolist()
