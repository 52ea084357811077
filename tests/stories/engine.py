"""A small serving engine over models/tiny, built on gramary's public interface alone.

The PLE layer is gramary's: rows by a `Connector`, windows in a `SlotPool`, arithmetic by
`gramary.ple` on static buffers. All other layers are transformers' own and run one token of one
request at a time, with a copy of their cache kept behind each token, so that a request can go back
to any of its positions. A step takes any tokens of any requests, in one flat batch for the PLE
layer:

    request = engine.start(prompt)
    logits = engine.step([(request, 5), (other, 1)])   # runs 5 and 1 of their waiting tokens
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, Qwen4ExpForCausalLM

from gramary import Batch, Connector, PLELayer, Settings, SlotPool, Table, ple
from gramary.integrations.transformers import load

TINY = Path(__file__).parents[2] / "models" / "tiny"
MAX_TOKENS, MAX_REQUESTS, NUM_SLOTS = 64, 4, 12
# A loaded machine may take its time.
SETTINGS = Settings(request_timeout_s=60)


class ReachedError(Exception):
    """The first pass came to the PLE layer."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class Seat(nn.Module):
    """Stands where transformers' PLE layer was, and gives what the engine has computed."""

    contribution: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Returns the contribution, or stops the pass that asks for it too early."""
        if self.contribution is None:
            raise ReachedError(hidden)
        return self.contribution


@dataclasses.dataclass
class Request:
    """A request: its tokens, how many of them have run, its slot and its caches by position."""

    tokens: list[int]
    prompt_length: int
    slot: int
    position: int = 0
    caches: dict[int, DynamicCache] = dataclasses.field(default_factory=dict)


class Engine:
    """See the module. Close it with the `with` statement."""

    def __init__(
        self, device: str, *, placement: str = "disk", max_drafts: int = 3, **connector: Any
    ) -> None:
        self.model = load(TINY, placement="disk", dtype=torch.float32).to(device)
        self.seat = self.model.model.layers[1].ple = Seat()
        self.layer = PLELayer.from_checkpoint(
            TINY, placement=placement, device=device, dtype=torch.float32, settings=SETTINGS
        )
        self.table: Table = self.layer.table
        self.connector = Connector(
            self.table, max_tokens=MAX_TOKENS, settings=SETTINGS, **connector
        )
        self.device = device
        geometry = self.layer.geometry
        self.caps = ple.Caps(
            device=device, mode="mixed", max_tokens=MAX_TOKENS, max_seqs=MAX_REQUESTS,
            max_state_slots=NUM_SLOTS, max_speculative_tokens=max_drafts,
            streams=geometry.streams, hidden_size=geometry.hidden_size,
            kernel_size=geometry.kernel_size, dilation=geometry.dilation, dtype=torch.float32,
        )  # fmt: skip
        self.binding = self._bind(ple.plan(self.caps))
        self.pool = SlotPool(
            self.caps, self.binding.conv_state, history_length=2, model_id="models/tiny"
        )

    def start(self, prompt: Sequence[int]) -> Request:
        """Returns a fresh request."""
        request = Request(list(prompt), len(prompt), self.pool.acquire())
        request.caches[0] = DynamicCache(config=self.model.config)
        return request

    def ask(self, work: Sequence[tuple[Request, int]], ahead: Sequence[int] | None = None) -> Any:
        """Requests the rows of a step; with `ahead`, of one from those positions on."""
        tokens, histories, prefill = [], [], []
        starts = ahead or [request.position for request, _ in work]
        for (request, count), start in zip(work, starts, strict=True):
            tokens += request.tokens[start : start + count]
            histories.append(self.history(request, start))
            prefill.append(start + count <= request.prompt_length)
        bounds = torch.tensor([0, *(count for _, count in work)]).cumsum(0).int()
        batch = Batch(
            torch.tensor(tokens), bounds, history=torch.tensor(histories), is_prefill=prefill
        )
        return self.connector.request(batch)

    def step(self, work: Sequence[tuple[Request, int]], ticket: Any = None) -> list[torch.Tensor]:
        """Runs the next tokens of some requests; returns float32 logits [count, V] of each."""
        ticket = ticket or self.ask(work)
        passes = [self._reach(request, count) for request, count in work]
        rows = self.connector.wait(ticket, dtype=torch.float32)
        contributions = self._run_ple(work, torch.cat(passes), rows)
        results = []
        for (request, _), part in zip(work, contributions, strict=True):
            results.append(self._finish(request, part))
        return results

    def rewind(self, request: Request, position: int) -> None:
        """Rejects a request's tokens from a position on: nothing is told to the PLE layer."""
        request.position = position
        del request.tokens[position:]

    def history(self, request: Request, position: int) -> list[int]:
        """Returns the two tokens before a position, EOS where there are none."""
        eos = self.table.spec.eos_token_id
        return [eos, eos, *request.tokens[:position]][-2:]

    @torch.no_grad()
    def _reach(self, request: Request, count: int) -> torch.Tensor:
        """Runs the layers before the PLE layer; returns their hidden states [count, C]."""
        cache = copy.deepcopy(request.caches[request.position])
        hidden = []
        self.seat.contribution = None
        for token in request.tokens[request.position : request.position + count]:
            try:
                self._forward(token, cache)
            except ReachedError as reached:
                hidden.append(reached.hidden[0])
        return torch.cat(hidden)

    @torch.no_grad()
    def _finish(self, request: Request, contributions: torch.Tensor) -> torch.Tensor:
        """Runs the tokens through all layers and keeps the cache behind each; returns logits."""
        logits = []
        for contribution in contributions:
            cache = copy.deepcopy(request.caches[request.position])
            self.seat.contribution = contribution.view(1, 1, -1)
            token = request.tokens[request.position]
            logits.append(self._forward(token, cache).logits[0, -1].float().cpu())
            request.position += 1
            request.caches[request.position] = cache
        return torch.stack(logits)

    def _forward(self, token: int, cache: DynamicCache) -> Any:
        ids = torch.tensor([[token]], device=self.device)
        return self.model(input_ids=ids, cache=cache, use_cache=True)

    @torch.no_grad()
    def _run_ple(
        self, work: Sequence[tuple[Request, int]], hidden: torch.Tensor, rows: torch.Tensor
    ) -> list[torch.Tensor]:
        binding, layer = self.binding, self.layer
        shape = (-1, self.caps.streams, self.caps.hidden_size)
        bounds = torch.tensor([0, *(count for _, count in work)]).cumsum(0)
        total = int(bounds[-1])
        binding.residual[:total] = hidden.view(shape)
        binding.key[:total] = layer.key_proj(rows).view(shape)
        binding.value[:total] = layer.value_proj(rows)
        for i, (request, count) in enumerate(work):
            self.pool.advance(request.slot, request.position, count)
            binding.query_start_loc[i + 1] = bounds[i + 1]
            binding.start_positions[i] = request.position
            binding.state_slot_ids[i] = request.slot
        binding.num_seqs[0], binding.num_tokens[0] = len(work), total
        out = ple.run(binding, eps=layer.geometry.eps)[:total].flatten(1)
        return list(out.clone().split([count for _, count in work]))

    def _bind(self, plan: Any) -> Any:
        caps, layer = self.caps, self.layer
        made: Any = {"device": self.device, "dtype": torch.float32}
        whole: Any = {"device": self.device, "dtype": torch.int64}
        short: Any = {"device": self.device, "dtype": torch.int32}
        wide = (caps.max_tokens, caps.streams, caps.hidden_size)
        return ple.bind(
            plan,
            scratch=torch.empty(plan.scratch_nbytes, dtype=torch.uint8, device=self.device),
            residual=torch.zeros(wide, **made),
            key=torch.zeros(wide, **made),
            value=torch.zeros(caps.max_tokens, caps.hidden_size, **made),
            k_norm_weight=layer.norm_key.weight,
            q_norm_weight=layer.norm_query.weight,
            u_norm_weight=layer.norm_conv.weight,
            conv_weight=layer.conv1d.weight.squeeze(1),
            query_start_loc=torch.zeros(caps.max_seqs + 1, **short),
            start_positions=torch.zeros(caps.max_seqs, **whole),
            state_slot_ids=torch.full((caps.max_seqs,), -1, **whole),
            num_seqs=torch.zeros(1, **short),
            num_tokens=torch.zeros(1, **short),
            conv_state=torch.full((NUM_SLOTS, caps.state_capacity, caps.channels), 7.0, **made),
            out=torch.empty(wide, **made),
        )

    def close(self) -> None:
        """Ends the connector and closes the tables."""
        self.pool.check_integrity()
        self.connector.close()
        self.table.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
