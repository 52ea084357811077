"""The bare storage: what it gives when nothing is planned, checked or scattered.

For benchmarks and for looking at a machine; rows are read by `gramary.native.disk`.
"""

from __future__ import annotations

import os

import torch

import gramary.native._core as _core


def try_io_uring(path: str) -> tuple[int, str]:
    """Makes a ring as the reader does, reads no byte of a file through it, and takes it down.

    Args:
        path: the file, whose file system is asked too.

    Returns:
        0 and what is not granted although rows can be read this way (empty: nothing), or the error
        number and the call that failed, in words.
    """
    return _core.try_io_uring(path)


def lane_shape() -> tuple[int, int]:
    """Returns (threads, reads in flight in each) of the reader's large batches here."""
    return _core.lane_shape()


def read_blocks_raw(
    path: str, offsets: torch.Tensor, block_bytes: int, num_threads: int, depth: int
) -> None:
    """Reads blocks past the page cache and throws them away: through io_uring, or by pread.

    Args:
        path: the file.
        offsets: int64 [n], multiples of `block_bytes`, contiguous on the CPU.
        block_bytes: bytes of a block, a multiple of what O_DIRECT asks for.
        num_threads: threads, each with a ring of its own.
        depth: reads in flight in each; 1 is one pread after the other, without io_uring.

    Raises:
        OSError: the file cannot be read this way; for depths above 1, what the kernel says where
            it refuses io_uring.
    """
    assert offsets.dtype == torch.int64
    assert offsets.is_contiguous()
    pointer, count = offsets.data_ptr(), offsets.numel()
    _check(_core.read_blocks_raw(path, pointer, count, block_bytes, num_threads, depth), path)


def read_rows_raw(path: str, offsets: torch.Tensor, out: torch.Tensor) -> None:
    """Reads each row by one pread through the page cache, on this thread.

    Args:
        path: the file.
        offsets: int64 [n], contiguous on the CPU.
        out: uint8 [n, row_bytes], contiguous on the CPU.

    Raises:
        OSError: a row cannot be read.
    """
    assert offsets.dtype == torch.int64
    assert offsets.is_contiguous()
    assert out.dtype == torch.uint8
    assert out.is_contiguous()
    pointer, count = offsets.data_ptr(), offsets.numel()
    _check(_core.read_rows_raw(path, pointer, count, out.shape[1], out.data_ptr()), path)


def _check(code: int, path: str) -> None:
    if code:
        raise OSError(code, os.strerror(code), path)
