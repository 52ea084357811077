"""vLLM's per-step state of the model, with requests for rows before each forward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from vllm.models.qwen4_exp.nvidia.model_state import Qwen4ExpModelState

from gramary.integrations.vllm.feed import RowFeed
from gramary.integrations.vllm.opening import open_feed
from gramary.integrations.vllm.options import Options, chosen
from gramary.integrations.vllm.step import plan_step


class StateWithRows(Qwen4ExpModelState):
    """The stock state; a stage with a PLE layer opens its tables here.

    At that time all weights are placed, a draft model's too, and vLLM has not measured yet what is
    left for the KV cache: rows on the device are counted right.
    """

    def __init__(self, vllm_config: Any, model: Any, encoder_cache: Any, device: Any) -> None:
        with _as_one_stage(vllm_config):
            super().__init__(vllm_config, model, encoder_cache, device)
        options = chosen(vllm_config.additional_config)
        assert options is not None
        self._options: Options = options
        self._prompts: dict[str, torch.Tensor] = {}
        self.feed: RowFeed | None = None
        if not model.ple_rows:
            # Another stage has the layers.
            self.uses_ngram_embedding = False
            return
        self.feed = open_feed(vllm_config, options, model.ple_rows, torch.device(device))
        for place, rows in enumerate(model.ple_rows):
            rows.connect(self.feed, is_first=place == 0)

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Keeps the tokens to prefill: the prompt, and what was generated before a preemption."""
        super().add_request(req_index, new_req_data)
        if self.feed is not None:
            # A copy: in one process with the scheduler it is the list that grows.
            self._prompts[new_req_data.req_id] = torch.tensor(
                new_req_data.prefill_token_ids, dtype=torch.int64, device="cpu"
            )

    def remove_request(self, req_id: str) -> None:
        """Forgets a request's tokens."""
        super().remove_request(req_id)
        self._prompts.pop(req_id, None)

    def preprocess_state(
        self, input_batch: Any, block_tables: Any, kv_cache_config: Any, num_computed_tokens: Any
    ) -> None:
        """Requests the rows of a real step's prefills, while the step before runs."""
        super().preprocess_state(input_batch, block_tables, kv_cache_config, num_computed_tokens)
        if self.feed is not None:
            plan = plan_step(
                input_batch,
                self._prompts,
                is_early=self._options.prefill_early_request,
                splits_mixed=self._options.split_mixed,
            )
            self.feed.begin(plan)


@contextlib.contextmanager
def _as_one_stage(vllm_config: Any) -> Iterator[None]:
    """Passes vLLM's refusal of several stages by; see `model_check.verify`."""
    parallel = vllm_config.parallel_config
    stages, parallel.pipeline_parallel_size = parallel.pipeline_parallel_size, 1
    try:
        yield
    finally:
        parallel.pipeline_parallel_size = stages


__all__ = ["StateWithRows"]
