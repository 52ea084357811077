"""A window as bytes that another process, with another pool, can take over.

Layout, little endian; integers unsigned unless said:

    offset  bytes  content
    0       8      magic b"GRAMWIN\\0"
    8       4      version, 1
    12      4      dtype: 1 bfloat16, 2 float16, 3 float32
    16      8      state_length L
    24      8      channels C
    32      8      position, signed, >= 0
    40      4      number of history tokens N
    44      4      bytes of the model's identity M
    48      8*N    history, signed, oldest first
    ..      M      the model's identity, UTF-8
    ..      L*C*b  the window [L, C], oldest first; columns of positions below 0 are zero
    ..      8      XXH64 (seed 0) of all bytes before

Columns are in the order of positions, so a blob does not depend on how many drafts the pool it
came from, or the one it goes to, makes room for.
"""

from __future__ import annotations

import dataclasses
import struct

import torch
import xxhash

from gramary.arguments import require_type
from gramary.errors import SlotError

MAGIC = b"GRAMWIN\0"
VERSION = 1
HEADER = struct.Struct("<8sIIQQqII")
DTYPE_CODES = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3}


@dataclasses.dataclass(frozen=True, eq=False)
class WindowBlob:
    """One window with what says whether it fits.

    Attributes:
        window: D [state_length, channels] on the CPU, oldest first.
        position: position of the next token.
        history: the last tokens before it, oldest first.
        model_id: identity of the model that computed it.
    """

    window: torch.Tensor
    position: int
    history: tuple[int, ...]
    model_id: str

    def to_bytes(self) -> bytes:
        """Returns the blob of the layout above."""
        identity = self.model_id.encode()
        header = HEADER.pack(
            MAGIC,
            VERSION,
            DTYPE_CODES[self.window.dtype],
            *self.window.shape,
            self.position,
            len(self.history),
            len(identity),
        )
        history = struct.pack(f"<{len(self.history)}q", *self.history)
        content = self.window.contiguous().view(torch.uint8).numpy().tobytes()
        body = header + history + identity + content
        return body + struct.pack("<Q", xxhash.xxh64_intdigest(body))

    @classmethod
    def from_bytes(cls, blob: bytes | bytearray | memoryview) -> WindowBlob:
        """Returns the window of a blob.

        Raises:
            ArgumentError: it is no bytes at all.
            SlotError: it is none, of another version, truncated, too long, or altered.
        """
        require_type("blob", blob, bytes, bytearray, memoryview)
        blob = bytes(blob)
        if len(blob) < HEADER.size or not blob.startswith(MAGIC):
            raise SlotError("blob: expected an exported window, got other bytes")
        _, version, code, length, channels, position, num_tokens, num_bytes = HEADER.unpack_from(
            blob
        )
        if version != VERSION:
            raise SlotError(
                f"blob: expected version {VERSION}, got {version}; export it with this release"
            )
        dtypes = {code: dtype for dtype, code in DTYPE_CODES.items()}
        if code not in dtypes:
            raise SlotError(f"blob: expected a dtype code of {sorted(dtypes)}, got {code}")
        dtype = dtypes[code]
        window_at = HEADER.size + 8 * num_tokens + num_bytes
        end = window_at + length * channels * dtype.itemsize
        if len(blob) != end + 8:
            raise SlotError(f"blob: expected {end + 8} bytes, got {len(blob)}; transfer it again")
        stored = struct.unpack_from("<Q", blob, end)[0]
        computed = xxhash.xxh64_intdigest(blob[:end])
        if stored != computed:
            raise SlotError(
                f"blob: expected checksum {stored:#018x}, got {computed:#018x}; transfer it again"
            )
        if position < 0:
            raise SlotError(f"blob: expected a position of 0 or more, got {position}")
        identity_at = HEADER.size + 8 * num_tokens
        try:
            model_id = blob[identity_at:window_at].decode()
        except UnicodeDecodeError as error:
            raise SlotError("blob: expected an identity in UTF-8, got other bytes") from error
        content = bytearray(blob[window_at:end])
        return cls(
            window=torch.frombuffer(content, dtype=dtype).view(length, channels),
            position=position,
            history=struct.unpack_from(f"<{num_tokens}q", blob, HEADER.size),
            model_id=model_id,
        )
