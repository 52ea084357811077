"""The blocks of a pack in order, for checking them: each read exactly once, past what serves."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import torch

from gramary.errors import RowReadError
from gramary.files.pack.geometry import PackGeometry
from gramary.files.page_cache import PageCacheGuest, Span


def read_blocks(
    descriptor: int, name: str, geometry: PackGeometry, chunk_bytes: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields the blocks with rows in order, in chunks; what the page cache held stays, no more.

    Args:
        descriptor: readable descriptor of the pack.
        name: the pack's name, for messages.
        geometry: where its blocks lie.
        chunk_bytes: bytes of a chunk, which has at least one block.

    Yields:
        (index of the chunk's first block among those with rows, uint8 [whole blocks]); the tensor
        holds until the next.

    Raises:
        RowReadError: reading failed, or the file ended too early; with file, offset and errno.
    """
    chunk_blocks = min(max(1, chunk_bytes // geometry.block_bytes), geometry.num_blocks)
    buffer = torch.empty(chunk_blocks * geometry.block_bytes, dtype=torch.uint8, device="cpu")

    def span_of(block: int) -> Span:
        end = min(block + chunk_blocks, geometry.num_blocks)
        return Span(descriptor, geometry.offset_of(block), geometry.offset_of(end))

    with PageCacheGuest() as guest:
        guest.announce([span_of(0)])
        for block in range(0, geometry.num_blocks, chunk_blocks):
            begin, end = span_of(block)[1:]
            guest.announce([span_of(block + chunk_blocks)] if end < geometry.file_bytes else [])
            _read_exactly(descriptor, name, begin, buffer[: end - begin])
            guest.let_go()
            yield block, buffer[: end - begin]


def _read_exactly(descriptor: int, name: str, offset: int, out: torch.Tensor) -> None:
    room = out.numpy().data
    while room:
        try:
            num_bytes = os.preadv(descriptor, [room], offset)
        except OSError as error:
            code = error.errno or errno.EIO
            raise RowReadError(
                "reading a pack failed", file=name, offset=offset, errno=code
            ) from error
        if not num_bytes:
            raise RowReadError(
                "the pack was truncated meanwhile", file=name, offset=offset, errno=0
            )
        room, offset = room[num_bytes:], offset + num_bytes
