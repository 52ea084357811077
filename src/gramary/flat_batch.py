"""One forward's flat tokens as all that lies below the public calls takes them: checked once."""

from __future__ import annotations

import dataclasses

import torch

from gramary.errors import ArgumentError

TOKEN_DTYPES = (torch.int32, torch.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class FlatBatch:
    """Tokens of a batch, back to back, with the bounds and the past of its requests.

    Public calls make it, by `checked` or of what they have checked before by `in_memory`. Below
    them its shapes, dtypes, device and layout are trusted; only numbers are still looked at, where
    they are read.

    Attributes:
        token_ids: int32 or int64 [T], contiguous.
        query_start_loc: int32 [R+1] beside the tokens, contiguous; on a device it is read by
            kernels alone, so that it may change under a captured graph.
        history: int32 or int64 [R, ngram_size-1] beside the tokens, contiguous, oldest first; None
            is all EOS.
    """

    token_ids: torch.Tensor
    query_start_loc: torch.Tensor
    history: torch.Tensor | None = None

    @classmethod
    def checked(
        cls,
        history_length: int,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        history: torch.Tensor | None,
    ) -> FlatBatch:
        """Returns what a caller passed, once all is right that is known without reading a number.

        Args:
            history_length: ngram_size-1 of the table.
            token_ids: int32 or int64 [T].
            query_start_loc: int32 [R+1].
            history: int32 or int64 [R, ngram_size-1], or None.

        Raises:
            ArgumentError: an argument is no tensor, or its shape, dtype or device is wrong.
        """
        check_tensor("token_ids", token_ids, TOKEN_DTYPES, token_ids, "[T]", 1)
        check_tensor("query_start_loc", query_start_loc, (torch.int32,), token_ids, "[R+1]", 1)
        num_requests = query_start_loc.numel() - 1
        if num_requests < 0:
            raise ArgumentError(
                "query_start_loc: expected shape [R+1], at least one element, got [0]"
            )
        if history is not None:
            shape = f"[R, {history_length}]"
            check_tensor("history", history, TOKEN_DTYPES, token_ids, shape, 2)
            if history.shape != (num_requests, history_length):
                raise ArgumentError(
                    f"history: expected shape [{num_requests}, {history_length}] (requests of "
                    f"query_start_loc, ngram_size-1), got {list(history.shape)}"
                )
        return cls.in_memory(token_ids, query_start_loc, history)

    @classmethod
    def in_memory(
        cls,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        history: torch.Tensor | None,
    ) -> FlatBatch:
        """Returns checked tensors; those with gaps, or negated when read, are copied."""
        return cls(
            as_in_memory(token_ids),
            as_in_memory(query_start_loc),
            None if history is None else as_in_memory(history),
        )

    def to(self, device: torch.device) -> FlatBatch:
        """Returns the batch on a device; itself if it lies there."""
        if self.token_ids.device == device:
            return self
        return FlatBatch(
            self.token_ids.to(device),
            self.query_start_loc.to(device),
            None if self.history is None else self.history.to(device),
        )

    def addresses(self) -> tuple[int, bool, int, int, int, int, bool]:
        """Returns addresses and sizes of a batch on the CPU as the core's bindings take them."""
        tokens, starts, history = self.token_ids, self.query_start_loc, self.history
        # A wrong address is no error but a crash, so what made this batch is not trusted blindly.
        is_readable = tokens.is_cpu and tokens.is_contiguous() and starts.is_contiguous()
        if not is_readable or not (history is None or history.is_contiguous()):
            raise AssertionError(self)
        return (
            tokens.data_ptr(),
            tokens.dtype == torch.int64,
            tokens.numel(),
            starts.data_ptr(),
            starts.numel() - 1,
            0 if history is None else history.data_ptr(),
            history is not None and history.dtype == torch.int64,
        )


def as_in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns an integer tensor whose numbers lie at its address, one after another, as they are.

    A view that is negated when it is read is copied, as one with gaps is.
    """
    return tensor.resolve_neg().contiguous()


def is_stand_in(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is of a class that answers operations itself (FakeTensor, DTensor).

    The address of such a tensor is not that of its numbers, if it has any.
    """
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def require_plain(name: str, tensor: torch.Tensor) -> None:
    """Raises ArgumentError where an argument is a stand-in for a tensor."""
    if is_stand_in(tensor):
        raise ArgumentError(f"{name}: expected a plain tensor, got a {type(tensor).__name__}")


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    dtypes: tuple[torch.dtype, ...],
    beside: torch.Tensor,
    shape: str,
    num_dims: int,
) -> None:
    """Raises ArgumentError where dtype, layout, dimensions or device (`beside`'s) are wrong."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        expected = " or ".join(str(dtype) for dtype in dtypes)
        raise ArgumentError(f"{name}: expected {expected}, got {tensor.dtype}")
    # torch's own class, the usual one, is no stand-in and costs no call.
    if type(tensor) is not torch.Tensor:
        require_plain(name, tensor)
    if tensor.layout != torch.strided:
        raise ArgumentError(f"{name}: expected a dense tensor, got {tensor.layout}")
    if tensor.dim() != num_dims:
        raise ArgumentError(f"{name}: expected shape {shape}, got {list(tensor.shape)}")
    if tensor.device != beside.device:
        raise ArgumentError(
            f"{name}: expected a tensor on {beside.device} like token_ids, got {tensor.device}"
        )


__all__ = [
    "TOKEN_DTYPES",
    "FlatBatch",
    "as_in_memory",
    "check_tensor",
    "is_stand_in",
    "require_plain",
]
