"""Reading rows to a GPU: by its own reads, or by CPU threads and one copy.

Ids and tokens on the GPU never leave it: one launch reads device and host rows. Ids on the host,
and rows that the GPU cannot read (on disk, or in memory that is not registered), take the CPU path
of `reading.upload`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from gramary.errors import UnsupportedError
from gramary.flat_batch import FlatBatch
from gramary.model.codecs import Codec
from gramary.model.hashing import HashSpec
from gramary.ops._triton import embed as embed_op
from gramary.ops._triton import hash as hash_op
from gramary.ops._triton.sticky_error import error_of, new_error
from gramary.ops.extents import Extents
from gramary.reading.base import TableReader
from gramary.reading.launch_counts import LaunchCounts
from gramary.reading.upload import Uploader, UploadTarget
from gramary.settings import Settings
from gramary.tiers.residency import Residency


class CudaReader(TableReader):
    """Reads rows of all tiers into tensors on one CUDA device, in the order of its current stream.

    Args:
        spec: geometry of the table.
        codec: encoding of its rows.
        residency: where this rank's rows are; it must outlive the reader.
        device: where results lie, with its index.
        settings: `check_ids` and `host_gather_rows` are used.
    """

    def __init__(
        self,
        spec: HashSpec,
        codec: Codec,
        residency: Residency,
        device: torch.device,
        settings: Settings,
    ) -> None:
        self._spec = spec
        self._codec = codec
        self._device = device
        self._checks_ids = settings.check_ids
        self._extents = Extents(spec.num_rows, residency.device_extent, residency.registered_extent)
        # Rows that a launch cannot reach.
        self._others = residency.beyond_kernels
        self._counts = LaunchCounts(residency)
        with torch.cuda.device(device):
            self._constants = hash_op.HashConstants.of(spec, device)
            self._error = new_error(device)
            target = UploadTarget(spec, codec, residency, device, self._extents, self._error)
            self._uploader = Uploader(target, settings.host_gather_rows)
            # The constants may be read from any stream next.
            torch.cuda.synchronize(device)
        self.gather_from_rows = self._uploader.gather_from_rows

    def lookup(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows of `row_ids` [n] on the CPU or the device; see `TableReader`."""
        with self._on_device():
            if row_ids.device != self._device:
                self._uploader.lookup(row_ids.to(torch.int64), out)
                return
            self._read_ids(row_ids, out)
            self._lay_over(row_ids, out)

    def embed(self, batch: FlatBatch, out: torch.Tensor) -> None:
        """Writes the rows of a flat batch on the CPU or the device; see `TableReader`."""
        with self._on_device():
            if batch.token_ids.device != self._device:
                self._uploader.embed(batch, out)
                return
            self._counts.count(batch.token_ids.numel() * self._spec.num_heads)
            embed_op.embed(self._constants, batch, self._extents, self._codec, out, self._error)
            if self._others:
                shape = (batch.token_ids.numel(), self._spec.num_heads)
                row_ids = torch.empty(shape, dtype=torch.int64, device=self._device)
                hash_op.ngram_ids(self._constants, batch, row_ids)
                self._lay_over(row_ids.view(-1), out.view(row_ids.numel(), -1))

    def check(self) -> None:
        """Raises the first wrong id or token that a launch met, once; waits for the device.

        Raises:
            RowIdError: an id lay outside the table; its row is NaN.
            TokenError: a token lay outside the vocabulary; its rows are NaN.
        """
        with torch.cuda.device(self._device):
            error = error_of(
                self._error, vocab_size=self._spec.vocab_size, num_rows=self._spec.num_rows
            )
            if error is not None:
                self._error.zero_()
                raise error

    def close(self) -> None:
        """Waits until the device has read everything, and gives the staging back."""
        torch.cuda.synchronize(self._device)
        self._uploader.close()

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """Makes the table's device current for the block, and checks behind it if asked to."""
        with torch.cuda.device(self._device):
            yield
            if self._checks_ids and not torch.cuda.is_current_stream_capturing():
                self.check()

    def _read_ids(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows that the device can read, zero rows for the others."""
        self._counts.count(row_ids.numel())
        embed_op.lookup(row_ids, self._extents, self._codec, out, self._error)

    def _lay_over(self, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows that a launch cannot reach over the zero rows that stand for them."""
        if not self._others:
            return
        if torch.cuda.is_current_stream_capturing():
            names = " and ".join(tier.name for tier in self._others)
            raise UnsupportedError(
                f"this table has rows on {names} that a CUDA graph cannot read; capture a "
                "gramary.Connector's request and wait instead, or place all rows on device and host"
            )
        self._uploader.lay_over(row_ids.cpu().to(torch.int64), self._others, out)
