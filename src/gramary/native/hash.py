"""The native hash: row ids of flat batches on the CPU, on all threads."""

from __future__ import annotations

import dataclasses
import enum

import torch

from gramary.flat_batch import FlatBatch
from gramary.native import _core

MAX_NUM_HEADS = 1024


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

    def ngram_ids(self, batch: FlatBatch, out: torch.Tensor) -> BatchFault | None:
        """Writes the row ids of a batch.

        Args:
            batch: on the CPU.
            out: int64 [T, num_heads] on the CPU, contiguous.

        Returns:
            None, or the first wrong number; `out` is then undefined.
        """
        num_rows = batch.token_ids.numel() * self.num_heads
        is_writable = out.dtype == torch.int64 and out.is_cpu and out.is_contiguous()
        if not is_writable or out.numel() != num_rows:
            raise AssertionError((out.dtype, out.device, out.shape, out.stride(), num_rows))
        code = self.core.ngram_ids(*batch.addresses(), out.data_ptr())
        return fault_of(code) if code else None


def fault_of(code: int) -> BatchFault:
    """Returns what a fault code of the core, 4 * index + kind, says; 0 is no fault."""
    return BatchFault(Fault(code % 4), code // 4)


__all__ = ["BatchFault", "Fault", "NgramHasher", "fault_of"]
