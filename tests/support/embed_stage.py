"""Tables, batches and devices for tests of the row kernels."""

from __future__ import annotations

import dataclasses
import itertools
import random

import torch

from gramary.model.codecs import Codec
from gramary.native.rows import RowExtent
from gramary.ops._triton.tiles import Tile
from gramary.ops.extents import Extents

# The GPU where there is one; else Triton's interpreter over CPU memory.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# The interpreter runs one program after another: there, a few large ones save minutes.
TILE = None if DEVICE == "cuda" else Tile(rows=64, lanes=4, num_warps=4)

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.uint8)


@dataclasses.dataclass(frozen=True)
class Spec:
    """Hash constants of a small table (or of the real one, by REAL)."""

    vocab_size: int
    eos_token_id: int
    ngram_size: int
    heads_per_ngram: int
    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def offsets(self) -> tuple[int, ...]:
        """First row of each head."""
        return (0, *itertools.accumulate(self.sizes[:-1]))

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return sum(self.sizes)


SMALL = Spec(
    97, 5, 3, 2, (0x4B0F_3DD3_5A21_0377, 0x2C35_9A11_0D0B_1C21, 987654321), (31, 37, 41, 43)
)
BIGRAMS = Spec(50, 0, 2, 3, (2**61 + 1, 2**60 + 7), (2, 53, 59))
FOURGRAMS = Spec(1000, 999, 4, 1, (2**40 + 1, 3**30, 5**20, 7**10), (101, 103, 107))
REAL = Spec(
    248320, 248044, 3, 8,
    (23703573157769, 20109073645365, 8052911324071),
    (20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
     20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171),
)  # fmt: skip


def random_table(codec: Codec, num_rows: int, seed: int = 0) -> torch.Tensor:
    """Returns encoded rows of random bytes, uint8 [num_rows, row_bytes]; any code may occur."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_rows, codec.row_bytes)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def split_extents(
    table: torch.Tensor, device: tuple[int, int], host: tuple[int, int]
) -> tuple[Extents, tuple[torch.Tensor, ...]]:
    """Returns extents over copies of the table's rows, and the copies, which must be kept."""
    on_device = table[slice(*device)].contiguous().to(DEVICE)
    on_host = table[slice(*host)].contiguous()
    if DEVICE == "cuda":
        on_host = on_host.pin_memory()
    extents = Extents(table.shape[0], extent_of(on_device, device[0]), extent_of(on_host, host[0]))
    return extents, (on_device, on_host)


def extent_of(rows: torch.Tensor, first_row: int = 0) -> RowExtent:
    """Returns encoded rows, which must be kept, as an extent that begins with `first_row`."""
    return RowExtent(rows.data_ptr(), first_row, rows.shape[0])


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns an output on the device in which an unwritten element shows: NaN, 0xA5 or -77."""
    if dtype.is_floating_point:
        return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)
    return torch.full(shape, 0xA5 if dtype == torch.uint8 else -77, dtype=dtype, device=DEVICE)


def random_batch(
    spec: Spec, lengths: list[int], seed: int = 0, num_padding: int = 0
) -> tuple[list[int], list[int], list[list[int]]]:
    """Returns tokens with many EOS among them, query_start_loc and histories."""
    rng = random.Random(seed)

    def token() -> int:
        return spec.eos_token_id if rng.random() < 0.2 else rng.randrange(spec.vocab_size)

    query_start_loc = [0, *itertools.accumulate(lengths)]
    tokens = [token() for _ in range(query_start_loc[-1] + num_padding)]
    history = [[token() for _ in range(spec.ngram_size - 1)] for _ in lengths]
    return tokens, query_start_loc, history


def on_device(values: object, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Returns a list as a tensor on the device."""
    return torch.tensor(values, dtype=dtype, device=DEVICE)
