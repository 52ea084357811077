"""The module that stands where vLLM's PLE layer looks rows up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.compilation.breakable_cudagraph import eager_break_during_capture
from vllm.models.common.ops.sequence_parallel import sp_shard

from gramary.integrations.vllm.feed import RowFeed
from gramary.integrations.vllm.weights import check_hash_buffer, check_shard, hash_numbers


class PLERows(nn.Module):
    """Gives one PLE layer its decoded rows.

    It takes the place of vLLM's `Qwen4ExpNGramEmbedding` and answers all that its PLE layer calls.
    In a graph of a whole forward, requests and waits are captured; between the pieces of a graph in
    pieces, and in eager mode, they run in Python at every step, so that the steps may differ.

    Args:
        stock: what vLLM built, without a table.
        table_index: dense index of the layer's table.
    """

    def __init__(self, stock: Any, table_index: int) -> None:
        super().__init__()
        self.ngram_embedding = stock.ngram_embedding
        self.table_index = table_index
        self.hash_numbers = hash_numbers(stock)
        self._num_shards = int(stock.split_ngram_parts)
        # Every rank has all rows, so none are summed over the ranks, as vLLM does with its shards.
        self._is_sequence_parallel = bool(stock.use_sequence_parallel)
        self._feed: RowFeed | None = None
        self._is_first = False

    def connect(self, feed: RowFeed, is_first: bool) -> None:
        """Sets what fetches the rows; the first layer of a stage makes the requests."""
        self._feed, self._is_first = feed, is_first

    @property
    def feed(self) -> RowFeed:
        """What fetches the rows."""
        if self._feed is None:
            raise AssertionError("a forward runs before the runner's state was made")
        return self._feed

    def start_prefetch(
        self, input_ids: torch.Tensor, query_start_loc: torch.Tensor, ngram_context: torch.Tensor
    ) -> None:
        """Requests what this step did not request before its forward; one layer ahead."""
        if self._is_first:
            self._request(input_ids.reshape(-1), query_start_loc, ngram_context)

    def forward(
        self,
        hidden_states: torch.Tensor,
        input_ids: torch.Tensor,
        query_start_loc: torch.Tensor,  # noqa: ARG002
        ngram_context: torch.Tensor,  # noqa: ARG002
    ) -> torch.Tensor:
        """Returns decoded rows [T, heads * row_dim], a rank's own tokens under sequence parallel.

        Args:
            hidden_states: gives dtype and device.
            input_ids: [T], padding included.
            query_start_loc: int32 [R+1].
            ngram_context: int32 [R, ngram_size-1]; like query_start_loc, it went with the request.
        """
        tokens = input_ids.reshape(-1)
        out = torch.empty(
            (tokens.shape[0], self.feed.width(self.table_index)),
            dtype=hidden_states.dtype,
            device=hidden_states.device,
        )
        self._take(tokens, out)
        return sp_shard(out) if self._is_sequence_parallel else out

    @eager_break_during_capture
    def _request(
        self, input_ids: torch.Tensor, query_start_loc: torch.Tensor, ngram_context: torch.Tensor
    ) -> None:
        self.feed.request(input_ids, query_start_loc, ngram_context)

    @eager_break_during_capture
    def _take(self, input_ids: torch.Tensor, out: torch.Tensor) -> None:
        self.feed.take(self.table_index, input_ids, out)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Compares what a checkpoint holds beside the rows, and rows that come again.

        Raises:
            HashMismatchError: the checkpoint's hash differs from its configuration's.
            UnsupportedError: rows differ from the table's, which does not change while it serves.
        """
        for name, tensor in weights:
            leaf = name.rsplit(".", 1)[-1]
            if name.startswith("ngram_embedding."):
                if self._feed is not None:
                    check_shard(self._feed.table(self.table_index), self._num_shards, name, tensor)
            elif not leaf.startswith("hashstats_") and leaf != "token_lookup":
                check_hash_buffer(self.hash_numbers, name, tensor)
        return set()


__all__ = ["PLERows"]
