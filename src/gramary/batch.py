"""One forward's flat tokens and request boundaries, and what the engine knows about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from gramary.errors import ArgumentError
from gramary.hashing import HashSpec
from gramary.ops.flat_batch import TOKEN_DTYPES, check_tensor

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclasses.dataclass(frozen=True)
class Batch:
    """One forward's tokens, back to back, with the bounds of its requests.

    Attributes:
        token_ids: int32 or int64 [T], on the host or on a CUDA device.
        query_start_loc: int32 [R+1], beside the tokens; request r has the tokens from element r
            to element r+1. On a device it is live metadata, read by kernels alone.
        history: int32 or int64 [R, ngram_size-1] beside the tokens, the tokens before each
            request's, oldest first, EOS where there are none; None: every request begins.
        is_prefill: whether each request's tokens all lie inside its prompt: a bool for all or one
            for each [R]; None where the engine does not say.
        num_drafts: draft tokens among each request's: a count for all or one for each [R]; None
            is no drafts.
        num_padding: tokens behind the last request's, for host tensors; a device batch says so by
            its query_start_loc.

    Raises:
        ArgumentError: a shape, dtype or device is wrong, or, for host tensors, query_start_loc
            does not begin with 0, falls, or does not end at T - num_padding.
    """

    token_ids: torch.Tensor
    query_start_loc: torch.Tensor
    history: torch.Tensor | None = dataclasses.field(default=None, kw_only=True)
    is_prefill: bool | Sequence[bool] | torch.Tensor | None = dataclasses.field(
        default=None, kw_only=True
    )
    num_drafts: int | Sequence[int] | torch.Tensor | None = dataclasses.field(
        default=None, kw_only=True
    )
    num_padding: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        self._check_tensors()
        if self.is_on_host:
            self._check_bounds()
        elif self.num_padding:
            raise ArgumentError(
                f"num_padding: expected 0 for a batch on {self.token_ids.device} (its "
                f"query_start_loc tells where padding begins), got {self.num_padding}"
            )
        for name in ("is_prefill", "num_drafts"):
            self._check_per_request(name)
        if self.num_drafts is not None and bool(
            (torch.as_tensor(self.num_drafts, device="cpu") < 0).any()
        ):
            raise ArgumentError(f"num_drafts: expected counts of at least 0, got {self.num_drafts}")

    @classmethod
    def from_prompts(
        cls,
        spec: HashSpec,
        prompts: Sequence[torch.Tensor | Sequence[int]],
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> Batch:
        """Returns the prompt-only host batch of some chunks of prompts.

        Args:
            spec: geometry of the table; gives the history's width and its EOS.
            prompts: each request's whole prompt, token ids on the host.
            starts: tokens of each prompt that earlier forwards ran.
            lengths: tokens of each prompt to run now.

        Returns:
            A batch of int64 host tensors it owns, with `is_prefill=True`.

        Raises:
            ArgumentError: the arguments differ in length, a prompt holds no token ids, or a chunk
                leaves its prompt.
        """
        if not len(prompts) == len(starts) == len(lengths):
            raise ArgumentError(
                f"prompts, starts and lengths: expected one element a request each, got "
                f"{len(prompts)}, {len(starts)} and {len(lengths)}"
            )
        width = spec.history_length
        history = torch.full(
            (len(prompts), width), spec.eos_token_id, dtype=torch.int64, device="cpu"
        )
        chunks = []
        for i, (prompt, start, length) in enumerate(zip(prompts, starts, lengths, strict=True)):
            tokens = _prompt_tokens(f"prompts[{i}]", prompt)
            if start < 0 or length < 0 or start + length > tokens.numel():
                raise ArgumentError(
                    f"starts[{i}], lengths[{i}]: expected a chunk of the prompt's "
                    f"{tokens.numel()} tokens, got {length} tokens from {start} on"
                )
            known = min(start, width)
            history[i, width - known :] = tokens[start - known : start]
            chunks.append(tokens[start : start + length])
        counts = torch.tensor([0, *lengths], dtype=torch.int64, device="cpu")
        return cls(
            torch.cat(chunks) if chunks else torch.empty(0, dtype=torch.int64, device="cpu"),
            counts.cumsum(0).to(torch.int32),
            history=history,
            is_prefill=True,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch, padding included."""
        return self.token_ids.numel()

    @property
    def num_requests(self) -> int:
        """Requests of the batch, empty ones included."""
        return self.query_start_loc.numel() - 1

    @property
    def is_on_host(self) -> bool:
        """True where the tokens lie in host memory."""
        return self.token_ids.device.type == "cpu"

    def why_not_prompt_only(self) -> str | None:
        """Returns why this batch is not prompt-only, in a few fixed words, or None if it is.

        A prompt-only batch has every request inside its prefill, no drafts, no padding and its
        tokens at hand on the host; its rows may be requested before the forward before it ran.
        """
        if not self.is_on_host:
            return "device tokens"
        if self.num_padding:
            return "padding"
        if self._any_draft():
            return "drafts"
        if self.is_prefill is None:
            return "prefill unknown"
        if not bool(torch.as_tensor(self.is_prefill, device="cpu").all()):
            return "decode"
        return None

    def _any_draft(self) -> bool:
        return self.num_drafts is not None and bool(
            (torch.as_tensor(self.num_drafts, device="cpu") > 0).any()
        )

    def _check_tensors(self) -> None:
        tokens = self.token_ids
        check_tensor("token_ids", tokens, TOKEN_DTYPES, tokens, "[T]", 1)
        check_tensor("query_start_loc", self.query_start_loc, (torch.int32,), tokens, "[R+1]", 1)
        if self.query_start_loc.numel() < 1:
            raise ArgumentError("query_start_loc: expected shape [R+1], got [0]")
        if self.history is None:
            return
        check_tensor("history", self.history, TOKEN_DTYPES, tokens, "[R, ngram_size-1]", 2)
        if self.history.shape[0] != self.num_requests:
            raise ArgumentError(
                f"history: expected {self.num_requests} rows (the requests of query_start_loc), "
                f"got {self.history.shape[0]}"
            )

    def _check_bounds(self) -> None:
        starts = self.query_start_loc
        if int(starts[0]) != 0 or bool((starts[1:] < starts[:-1]).any()):
            raise ArgumentError(
                f"query_start_loc: expected to begin with 0 and never fall, got {starts.tolist()}"
            )
        if self.num_padding < 0 or int(starts[-1]) + self.num_padding != self.num_tokens:
            raise ArgumentError(
                f"query_start_loc and num_padding: expected query_start_loc[-1] + num_padding to "
                f"be the {self.num_tokens} tokens, got {int(starts[-1])} + {self.num_padding}"
            )

    def _check_per_request(self, name: str) -> None:
        value = getattr(self, name)
        if value is None or isinstance(value, int):
            return
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise ArgumentError(f"{name}: expected host values, got a tensor on {value.device}")
        if len(value) != self.num_requests:
            raise ArgumentError(
                f"{name}: expected one value a request ({self.num_requests}), got {len(value)}"
            )


def _prompt_tokens(name: str, prompt: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """Returns a prompt as int64 [T] on the host."""
    try:
        tokens = torch.as_tensor(prompt, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        tokens = None
    is_whole = tokens is not None and (tokens.dtype in _INTEGERS or not tokens.numel())
    if tokens is None or not is_whole or tokens.ndim != 1:
        raise ArgumentError(f"{name}: expected the token ids of one prompt [T], got {prompt!r}")
    return tokens.to(torch.int64)


__all__ = ["Batch"]
