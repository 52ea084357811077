"""One timed generation, and the first place where two of them differ."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gramary.integrations.table_embedding import TableEmbedding


@dataclasses.dataclass(frozen=True)
class Generation:
    """What a model wrote and how long it took.

    Attributes:
        tokens: new token ids [N], int64, on the CPU.
        logits: the raw logits behind each of them, N tensors [vocabulary] on the CPU.
        first_token_s: seconds until the first new token (the whole prompt was read).
        total_s: seconds until the last.
        rows_s: seconds inside table lookups.
        num_rows: rows looked up.
    """

    tokens: torch.Tensor
    logits: tuple[torch.Tensor, ...]
    first_token_s: float
    total_s: float
    rows_s: float
    num_rows: int

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second after the first one; of all of them when there is only one."""
        later = len(self.tokens) - 1
        if later < 1:
            return len(self.tokens) / self.total_s
        return later / (self.total_s - self.first_token_s)


class Clock:
    """A transformers streamer that passes new tokens on and notes when the first one came."""

    def __init__(self, show_tokens: Callable[[torch.Tensor], None] | None) -> None:
        self.start = time.perf_counter()
        self.first_token_s = 0.0
        self._show_tokens = show_tokens
        self._saw_prompt = False

    def put(self, tokens: torch.Tensor) -> None:
        """Takes the prompt's tokens first, then each new one."""
        if not self._saw_prompt:
            self._saw_prompt = True
            return
        self.first_token_s = self.first_token_s or time.perf_counter() - self.start
        if self._show_tokens is not None:
            self._show_tokens(tokens)

    def end(self) -> None:
        """Called once after the last token."""


def run_generation(
    model: Any,
    prompt_ids: torch.Tensor,
    *,
    max_new_tokens: int,
    show_tokens: Callable[[torch.Tensor], None] | None = None,
    sampling: dict[str, Any] | None = None,
    seed: int = 0,
    prefill_chunk_size: int | None = None,
) -> Generation:
    """Lets a model continue a prompt and returns the tokens, their logits and the times.

    Args:
        model: a model of `gramary.integrations.transformers.load`.
        prompt_ids: int64 [1, N], on the model's device.
        max_new_tokens: most tokens to write.
        show_tokens: called with each new token, as it comes.
        sampling: options of `generate` for sampling; None takes the likeliest token.
        seed: seeds torch's generators before the run.
        prefill_chunk_size: tokens of the prompt to read at once; None reads it whole.
    """
    torch.manual_seed(seed)
    clock = Clock(show_tokens)
    with timed_rows(model) as timing:
        result = model.generate(
            prompt_ids,
            attention_mask=torch.ones_like(prompt_ids),
            max_new_tokens=max_new_tokens,
            streamer=clock,
            return_dict_in_generate=True,
            output_logits=True,
            prefill_chunk_size=prefill_chunk_size,
            **(sampling or {"do_sample": False}),
        )
        tokens = result.sequences[0, prompt_ids.shape[1] :].cpu()
        total_s = time.perf_counter() - clock.start
    logits = tuple(step[0].cpu() for step in result.logits)
    return Generation(tokens, logits, clock.first_token_s, total_s, timing.spent_s, timing.num_rows)


class RowTiming:
    """Time and rows of the lookups of a model, by hooks around its table modules."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.num_rows = 0
        self._entered = 0.0

    def enter(self, _module: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        """Notes the start of a lookup."""
        self.num_rows += arguments[0].numel()
        self._entered = time.perf_counter()

    def leave(self, _module: Any, _arguments: Any, _rows: torch.Tensor) -> None:
        """Adds the time of a lookup; on a GPU that is the time to launch it."""
        self.spent_s += time.perf_counter() - self._entered


@contextlib.contextmanager
def timed_rows(model: Any) -> Iterator[RowTiming]:
    """Counts and times the lookups of a model while the block runs."""
    timing = RowTiming()
    hooks = []
    for module in model.modules():
        if isinstance(module, TableEmbedding):
            hooks.append(module.register_forward_pre_hook(timing.enter))
            hooks.append(module.register_forward_hook(timing.leave))
    try:
        yield timing
    finally:
        for hook in hooks:
            hook.remove()


def find_difference(run: Generation, other: Generation, decode: Callable[[int], str]) -> str | None:
    """Returns the first place where two generations differ, in words; None if nowhere.

    Logits are compared bit for bit and come first: they differ before a token can.

    Args:
        run: one generation.
        other: the one to compare it with.
        decode: gives a token's text.
    """
    for step, (ours, theirs) in enumerate(zip(run.logits, other.logits, strict=False)):
        differs = as_bits(ours) != as_bits(theirs)
        if differs.any():
            token = int(differs.nonzero()[0])
            return (
                f"logits differ first at new token {step}: for token {token} "
                f"({decode(token)!r}) {float(ours[token])!r} against {float(theirs[token])!r}; "
                f"{int(differs.sum())} of {differs.numel()} logits of this step differ"
            )
    for step, (token, expected) in enumerate(
        zip(run.tokens.tolist(), other.tokens.tolist(), strict=False)
    ):
        if token != expected:
            return (
                f"tokens differ first at new token {step}: {token} ({decode(token)!r}) against "
                f"{expected} ({decode(expected)!r})"
            )
    if len(run.tokens) != len(other.tokens):
        return f"lengths differ: {len(run.tokens)} new tokens against {len(other.tokens)}"
    return None


def as_bits(values: torch.Tensor) -> torch.Tensor:
    """Returns floating-point values as integers of their width, so that NaN equals itself."""
    return values.view({2: torch.int16, 4: torch.int32}[values.element_size()])
