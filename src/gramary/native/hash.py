"""The native hash: row ids of flat batches on the CPU, on all threads."""

from __future__ import annotations

import dataclasses
import enum

import torch

from gramary.native import _core
from gramary.native.tensors import require_contiguous

MAX_NUM_HEADS = 1024
_TOKEN_DTYPES = (torch.int32, torch.int64)


class Fault(enum.IntEnum):
    """What can be wrong with the numbers of a batch whose shapes are right."""

    NONE = 0
    QUERY_START_LOC = 1
    TOKEN_IDS = 2
    HISTORY = 3


@dataclasses.dataclass(frozen=True)
class BatchFault:
    """The first wrong number of a batch: which argument, and its index in the flattened tensor."""

    kind: Fault
    index: int


class NgramHasher:
    """Hash constants of one table, ready for use from any number of threads.

    Args:
        vocab_size: token ids are 0 to vocab_size-1.
        eos_token_id: stands for every missing predecessor.
        multipliers: one factor for each place in the n-gram, current token first.
        sizes: rows of each head, order-major; as many for each n-gram length.
        offsets: first row of each head.
    """

    def __init__(
        self,
        vocab_size: int,
        eos_token_id: int,
        multipliers: tuple[int, ...],
        sizes: tuple[int, ...],
        offsets: tuple[int, ...],
    ) -> None:
        num_orders = len(multipliers) - 1
        is_square = 1 <= num_orders <= 4 and len(sizes) % num_orders == 0
        if not is_square or len(sizes) != len(offsets) or not 1 <= len(sizes) <= MAX_NUM_HEADS:
            raise AssertionError((multipliers, sizes, offsets))
        self.num_heads = len(sizes)
        self.core = _core.NgramHasher(
            vocab_size, eos_token_id, list(multipliers), list(sizes), list(offsets)
        )

    def ngram_ids(
        self,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        history: torch.Tensor | None,
        out: torch.Tensor,
    ) -> BatchFault | None:
        """Writes the row ids of a batch.

        Args:
            token_ids: int32 or int64 [T] on the CPU, contiguous.
            query_start_loc: int32 [R+1] on the CPU, contiguous.
            history: int32 or int64 [R, ngram_size-1] on the CPU, contiguous; None is all EOS.
            out: int64 [T, num_heads] on the CPU, contiguous.

        Returns:
            None, or the first wrong number; `out` is then undefined.
        """
        require_contiguous(out, torch.int64)
        if out.numel() != token_ids.numel() * self.num_heads:
            raise AssertionError((out.shape, token_ids.shape, self.num_heads))
        code = self.core.ngram_ids(*batch_addresses(token_ids, query_start_loc, history),
                                   out.data_ptr())  # fmt: skip
        return fault_of(code)


def batch_addresses(
    token_ids: torch.Tensor, query_start_loc: torch.Tensor, history: torch.Tensor | None
) -> tuple[int, bool, int, int, int, int, bool]:
    """Returns a contiguous CPU batch as the addresses and sizes that the core's bindings take."""
    require_contiguous(token_ids, *_TOKEN_DTYPES)
    require_contiguous(query_start_loc, torch.int32)
    if history is not None:
        require_contiguous(history, *_TOKEN_DTYPES)
    return (
        token_ids.data_ptr(),
        token_ids.dtype == torch.int64,
        token_ids.numel(),
        query_start_loc.data_ptr(),
        query_start_loc.numel() - 1,
        0 if history is None else history.data_ptr(),
        history is not None and history.dtype == torch.int64,
    )


def fault_of(code: int) -> BatchFault | None:
    """Returns what a fault code of the core says: 4 * index + kind, or 0 for none."""
    return BatchFault(Fault(code % 4), code // 4) if code else None


__all__ = ["BatchFault", "Fault", "NgramHasher", "batch_addresses", "fault_of"]
