"""One forward's flat tokens and request boundaries, and what the engine knows about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from gramary.arguments import require_integer, require_type
from gramary.errors import ArgumentError
from gramary.flat_batch import TOKEN_DTYPES, FlatBatch, check_tensor
from gramary.model.hashing import HashSpec

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclasses.dataclass(frozen=True)
class Batch:
    """One forward's tokens, back to back, with the bounds of its requests.

    Attributes:
        token_ids: int32 or int64 [T], on the host or on a CUDA device.
        query_start_loc: int32 [R+1], beside the tokens; request r has the tokens from element r
            to element r+1. On a device it is live metadata, read by kernels alone.
        history: int32 or int64 [R, ngram_size-1] beside the tokens, the tokens before each
            request's, oldest first, EOS where there are none; None: every request begins. That of
            a request without tokens is never looked at.
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
        require_integer("num_padding", self.num_padding, 0)
        self.check_tensors()
        if self.num_padding and not self.is_on_host:
            raise ArgumentError(
                f"num_padding: expected 0 for a batch on {self.token_ids.device} (its "
                f"query_start_loc tells where padding begins), got {self.num_padding}"
            )
        if self.is_prefill is not None:
            _per_request("is_prefill", self.is_prefill, (torch.bool,), self.num_requests)
        if self.num_drafts is None:
            return
        counts = _per_request("num_drafts", self.num_drafts, _INTEGERS, self.num_requests)
        if bool((counts < 0).any()):
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
            ArgumentError: the arguments differ in length, a prompt holds no token ids, a start or
                length is no integer, or a chunk leaves its prompt.
        """
        require_type("spec", spec, HashSpec)
        _require_aligned(prompts, starts, lengths)
        width = spec.history_length
        history = torch.full(
            (len(prompts), width), spec.eos_token_id, dtype=torch.int64, device="cpu"
        )
        chunks = []
        for i, (prompt, start, length) in enumerate(zip(prompts, starts, lengths, strict=True)):
            tokens = _prompt_tokens(f"prompts[{i}]", prompt)
            start = require_integer(f"starts[{i}]", start)
            length = require_integer(f"lengths[{i}]", length)
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
        return self.token_ids.is_cpu

    def flat(self, history_length: int) -> FlatBatch:
        """Returns the tensors as a table's hash takes them, as they are now.

        Args:
            history_length: ngram_size-1 of the table; the newest columns of the history are taken.
        """
        history = self.history
        if history is not None:
            history = history[:, history.shape[1] - history_length :]
        return FlatBatch.in_memory(self.token_ids, self.query_start_loc, history)

    def why_not_prompt_only(self) -> str | None:
        """Returns why this batch is not prompt-only, in a few fixed words, or None if it is.

        A prompt-only batch has every request inside its prefill, no drafts, no padding and its
        tokens at hand on the host; its rows may be requested before the forward before it ran.
        """
        if not self.token_ids.is_cpu:
            return "device tokens"
        if self.num_padding:
            return "padding"
        if self.num_drafts is not None:
            counts = torch.as_tensor(self.num_drafts, device="cpu")
            if bool((counts > 0).any()):
                return "drafts"
        if self.is_prefill is None:
            return "prefill unknown"
        if not bool(torch.as_tensor(self.is_prefill, device="cpu").all()):
            return "decode"
        return None

    def check_tensors(self) -> None:
        """Raises as the constructor does, for what its tensors hold now; waits for no device."""
        tokens = self.token_ids
        check_tensor("token_ids", tokens, TOKEN_DTYPES, tokens, "[T]", 1)
        check_tensor("query_start_loc", self.query_start_loc, (torch.int32,), tokens, "[R+1]", 1)
        if self.query_start_loc.numel() < 1:
            raise ArgumentError("query_start_loc: expected shape [R+1], got [0]")
        if self.history is not None:
            self._check_history(self.history)
        if tokens.is_cpu:
            self._check_bounds()

    def _check_history(self, history: torch.Tensor) -> None:
        check_tensor("history", history, TOKEN_DTYPES, self.token_ids, "[R, ngram_size-1]", 2)
        if history.shape[0] != self.num_requests:
            raise ArgumentError(
                f"history: expected {self.num_requests} rows (the requests of query_start_loc), "
                f"got {history.shape[0]}"
            )

    def _check_bounds(self) -> None:
        starts = self.query_start_loc
        if int(starts[0]) != 0 or bool((starts[1:] < starts[:-1]).any()):
            raise ArgumentError(
                f"query_start_loc: expected to begin with 0 and never fall, got {starts.tolist()}"
            )
        num_tokens = self.token_ids.numel()
        if int(starts[-1]) + self.num_padding != num_tokens:
            raise ArgumentError(
                f"query_start_loc and num_padding: expected query_start_loc[-1] + num_padding to "
                f"be the {num_tokens} tokens, got {int(starts[-1])} + {self.num_padding}"
            )


def _per_request(
    name: str, value: object, dtypes: tuple[torch.dtype, ...], num_requests: int
) -> torch.Tensor:
    """Returns a value for all requests, or one for each, as a host tensor of one of the dtypes."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        raise ArgumentError(f"{name}: expected host values, got a tensor on {value.device}")
    values = _as_host_tensor(value)
    kind = "a bool" if torch.bool in dtypes else "an integer"
    is_of_kind = values is not None and (values.dtype in dtypes or not values.numel())
    if values is None or not is_of_kind or tuple(values.shape) not in ((), (num_requests,)):
        raise ArgumentError(
            f"{name}: expected {kind} for all requests or one for each of the {num_requests}, got "
            f"{value!r}"
        )
    return values


def _require_aligned(*arguments: object) -> None:
    """Raises ArgumentError unless prompts, starts and lengths are sequences of one length."""
    counts = []
    for name, argument in zip(("prompts", "starts", "lengths"), arguments, strict=True):
        try:
            counts.append(len(argument))  # type: ignore[arg-type]
        except TypeError:
            raise ArgumentError(
                f"{name}: expected a sequence, one element a request, got {argument!r}"
            ) from None
    if len(set(counts)) > 1:
        raise ArgumentError(
            f"prompts, starts and lengths: expected one element a request each, got "
            f"{counts[0]}, {counts[1]} and {counts[2]}"
        )


def _prompt_tokens(name: str, prompt: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """Returns a prompt as int64 [T] on the host."""
    tokens = _as_host_tensor(prompt)
    is_whole = tokens is not None and (tokens.dtype in _INTEGERS or not tokens.numel())
    if tokens is None or not is_whole or tokens.ndim != 1:
        raise ArgumentError(f"{name}: expected the token ids of one prompt [T], got {prompt!r}")
    return tokens.to(torch.int64)


def _as_host_tensor(value: object) -> torch.Tensor | None:
    """Returns numbers as a dense tensor on the host, or None where they are none."""
    try:
        tensor = torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return tensor if tensor.layout == torch.strided else None


__all__ = ["Batch"]
