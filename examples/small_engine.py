"""A small serving engine over models/tiny, built on gramary's public interface alone.

docs/engines.md explains it part by part. The PLE layer is gramary's; all other layers are
transformers' own and run one token of one request at a time, with a copy of their cache kept after
each token, so that a request can go back to any of its positions.

    with Engine("cpu") as engine:
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
from transformers import DynamicCache

from gramary import Batch, Connector, PLELayer, Settings, SlotPool, Table, ple
from gramary.integrations.transformers import load
from gramary.slots import WindowCheckpoint

TINY = Path(__file__).parents[1] / "models" / "tiny"
MAX_TOKENS, MAX_REQUESTS, NUM_SLOTS = 64, 4, 12


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
        self,
        device: str,
        *,
        placement: str = "disk",
        max_drafts: int = 3,
        settings: Settings | None = None,
        **connector: Any,
    ) -> None:
        self.device = device
        self.model = load(TINY, placement="disk", dtype=torch.float32).to(device)
        self.seat = self.model.model.layers[1].ple = Seat()
        self.layer = PLELayer.from_checkpoint(
            TINY, placement=placement, device=device, dtype=torch.float32, settings=settings
        )
        self.table: Table = self.layer.table
        self.connector = Connector(
            self.table, max_tokens=MAX_TOKENS, settings=settings, **connector
        )
        geometry = self.layer.geometry
        self.caps = ple.Caps(
            device=device,
            mode="mixed",
            max_tokens=MAX_TOKENS,
            max_seqs=MAX_REQUESTS,
            max_state_slots=NUM_SLOTS,
            max_speculative_tokens=max_drafts,
            streams=geometry.streams,
            hidden_size=geometry.hidden_size,
            kernel_size=geometry.kernel_size,
            dilation=geometry.dilation,
            dtype=torch.float32,
        )
        self.binding = self._bind(ple.plan(self.caps))
        self.pool = SlotPool(
            self.caps, self.binding.conv_state, history_length=2, model_id="models/tiny"
        )

    def _bind(self, plan: Any) -> Any:
        caps, layer, device = self.caps, self.layer, self.device

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        wide = (caps.max_tokens, caps.streams, caps.hidden_size)
        return ple.bind(
            plan,
            scratch=zeros(plan.scratch_nbytes, dtype=torch.uint8),
            residual=zeros(*wide),
            key=zeros(*wide),
            value=zeros(caps.max_tokens, caps.hidden_size),
            k_norm_weight=layer.norm_key.weight,
            q_norm_weight=layer.norm_query.weight,
            u_norm_weight=layer.norm_conv.weight,
            conv_weight=layer.conv1d.weight.squeeze(1),
            query_start_loc=zeros(caps.max_seqs + 1, dtype=torch.int32),
            start_positions=zeros(caps.max_seqs, dtype=torch.int64),
            state_slot_ids=zeros(caps.max_seqs, dtype=torch.int64) - 1,
            num_seqs=zeros(1, dtype=torch.int32),
            num_tokens=zeros(1, dtype=torch.int32),
            conv_state=zeros(NUM_SLOTS, caps.state_capacity, caps.channels),
            out=zeros(*wide),
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

    def history(self, request: Request, position: int) -> list[int]:
        """Returns the two tokens before a position, EOS where there are none."""
        eos = self.table.spec.eos_token_id
        return [eos, eos, *request.tokens[:position]][-2:]

    def step(self, work: Sequence[tuple[Request, int]], ticket: Any = None) -> list[torch.Tensor]:
        """Runs the next tokens of some requests; returns float32 logits [count, V] of each."""
        ticket = ticket or self.ask(work)
        hidden = [self._reach(request, count) for request, count in work]
        rows = self.connector.wait(ticket, dtype=torch.float32)
        contributions = self._run_ple(work, torch.cat(hidden), rows)
        return [
            self._finish(request, part)
            for (request, _), part in zip(work, contributions, strict=True)
        ]

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

    def rewind(self, request: Request, position: int) -> None:
        """Rejects a request's tokens from a position on; the PLE layer need not be informed."""
        request.position = position
        del request.tokens[position:]

    def fork(self, request: Request, position: int) -> Request:
        """Returns a request that has the tokens before `position` and a window of its own."""
        return dataclasses.replace(
            request,
            tokens=request.tokens[:position],
            slot=self.pool.fork(request.slot, position),
            position=position,
            caches=copy.copy(request.caches),
        )

    def export(self, request: Request, positions: Sequence[int]) -> list[WindowCheckpoint]:
        """Keeps the windows at positions inside the newest step of a single request."""
        kept = [
            self.pool.checkpoint(request.slot, position, self.history(request, position))
            for position in positions
        ]
        slots = torch.full((MAX_REQUESTS, len(kept)), -1)
        offsets = torch.zeros(slots.shape, dtype=torch.int32)
        slots[0] = torch.tensor([checkpoint.slot for checkpoint in kept])
        offsets[0] = torch.tensor([checkpoint.offset for checkpoint in kept])
        offsets, slots = offsets.to(self.device), slots.to(self.device)
        status = torch.zeros_like(offsets)
        ple.export_checkpoint(self.binding, offsets=offsets, slots=slots, status=status)
        for checkpoint, outcome in zip(kept, status[0].tolist(), strict=True):
            assert self.pool.commit(checkpoint, outcome), ple.ExportStatus(outcome)
        return kept

    def resume(self, cold: Request, window: WindowCheckpoint, suffix: Sequence[int]) -> Request:
        """Starts a request after a prefix that another request ran."""
        position = window.position
        tokens = [*cold.tokens[:position], *suffix]
        slot = self.pool.restore(window, position, self.history(cold, position))
        return Request(tokens, len(tokens), slot, position, {position: cold.caches[position]})

    def close(self) -> None:
        """Ends the connector and closes the table."""
        self.pool.check_integrity()
        self.connector.close()
        self.table.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        """Runs the tokens through all layers and keeps the cache after each; returns logits."""
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
