"""Which rows of a step can be requested before its forward: plain numbers, no engine.

vLLM orders a batch's requests: those that verify drafts, those that decode, then prefills. So the
prefill part is a suffix, and the rest a prefix that slices of the same tensors describe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sized
from typing import Any


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Tokens of one prompt that a step runs.

    Attributes:
        prompt: the prompt's token ids, on the host.
        start: tokens of it that earlier steps ran.
        length: tokens to run now.
    """

    prompt: Any
    start: int
    length: int


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """A step's requests in two parts.

    Attributes:
        num_late_requests: requests before the early part; their rows are requested in stream order.
        num_late_tokens: their tokens.
        chunks: the early part, in the batch's order.
        reason: why the late part is late, or "early" where there is none.
    """

    num_late_requests: int
    num_late_tokens: int
    chunks: tuple[Chunk, ...]
    reason: str

    @property
    def way(self) -> str:
        """Which way the step goes and why, in fixed words for a statistic."""
        if not self.num_late_requests:
            return "early"
        return f"{'mixed' if self.chunks else 'late'}: {self.reason}"

    @property
    def num_early_tokens(self) -> int:
        """Tokens of the early part."""
        return sum(chunk.length for chunk in self.chunks)


def plan_step(
    batch: Any, prompts: Mapping[str, Sized], *, is_early: bool, splits_mixed: bool
) -> StepPlan:
    """Returns which requests of a batch are requested early, and why the others are not.

    Args:
        batch: vLLM's `InputBatch`, of which numbers on the host are read: `req_ids`,
            `num_scheduled_tokens`, `num_computed_tokens_np`, `is_prefilling_np`,
            `num_draft_tokens_per_req` and `num_tokens`.
        prompts: the tokens to prefill of each request, by its name.
        is_early: False requests nothing early.
        splits_mixed: False requests early only where all of the batch can be.
    """
    num_requests = batch.num_reqs
    lengths = [int(length) for length in batch.num_scheduled_tokens[:num_requests]]
    if not is_early:
        return StepPlan(num_requests, sum(lengths), (), "prefill_early_request is off")
    if sum(lengths) != batch.num_tokens:
        # Adaptive verification decides on the device how many drafts run.
        return StepPlan(num_requests, sum(lengths), (), "the device decides on drafts")
    chunks: list[Chunk] = []
    reason = "early"
    for index in range(num_requests - 1, -1, -1):
        why_not = _why_not_early(batch, prompts, index, lengths[index])
        if why_not:
            reason = why_not
            break
        prompt = prompts[batch.req_ids[index]]
        chunks.append(Chunk(prompt, int(batch.num_computed_tokens_np[index]), lengths[index]))
    num_late = num_requests - len(chunks)
    if num_late and not splits_mixed:
        return StepPlan(num_requests, sum(lengths), (), f"{reason}; split_mixed is off")
    return StepPlan(num_late, sum(lengths[:num_late]), tuple(reversed(chunks)), reason)


def _why_not_early(batch: Any, prompts: Mapping[str, Sized], index: int, length: int) -> str | None:
    """Returns why a request's tokens are not all known on the host, in fixed words, or None."""
    if not bool(batch.is_prefilling_np[index]):
        return "decode"
    drafts = batch.num_draft_tokens_per_req
    if drafts is not None and int(drafts[index]) > 0:
        return "drafts"
    prompt = prompts.get(batch.req_ids[index])
    if prompt is None:
        return "prompt unknown"
    if int(batch.num_computed_tokens_np[index]) + length > len(prompt):
        return "beyond the prompt"
    return None


__all__ = ["Chunk", "StepPlan", "plan_step"]
