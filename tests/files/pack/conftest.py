"""Small tables in files for the tests of packs."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from strangers import folder_for_all

from gramary.files.layout import RowFile, RowLayout, RowPart, RowRun, TableSource
from gramary.model.codecs import Codec, encode_rows
from gramary.model.hashing import HashSpec

CODECS = ("bf16", "fp16", "fp32", "fp8", "nvfp4")


def make_spec(row_dim: int = 32, base: int = 50, rows_multiple: int = 8) -> HashSpec:
    """A table of a few hundred rows."""
    return HashSpec(
        vocab_size=97,
        eos_token_id=3,
        ngram_size=3,
        heads_per_ngram=2,
        row_dim=row_dim,
        ngram_vocab_size_base=base,
        rows_multiple=rows_multiple,
    )


def encode_table(spec: HashSpec, name: str, seed: int = 0) -> tuple[torch.Tensor, Codec]:
    """Random rows of a table, encoded."""
    generator = torch.Generator().manual_seed(seed)
    return encode_rows(name, torch.randn(spec.num_rows, spec.row_dim, generator=generator))


def write_source(
    folder: Path, spec: HashSpec, rows: torch.Tensor, codec: Codec, num_shards: int = 3
) -> TableSource:
    """Writes encoded rows as shard files, nvfp4 in two parts as checkpoints have them."""
    folder.mkdir(parents=True, exist_ok=True)
    edges = [0, codec.row_bytes]
    if codec.name == "nvfp4":
        edges = [0, codec.row_dim // 2, codec.row_bytes]
    per_shard = -(-spec.num_rows // num_shards)
    files, runs = [], []
    for first in range(0, spec.num_rows, per_shard):
        shard = rows[first : first + per_shard]
        path = folder / f"shard{first}.bin"
        data, parts = b"head", []
        for left, right in itertools.pairwise(edges):
            width = right - left
            parts.append(
                RowPart(len(files), len(data), width, left, len(shard), width * len(shard), width)
            )
            data += shard[:, left:right].contiguous().numpy().tobytes()
        path.write_bytes(data)
        files.append(RowFile.from_path(path))
        runs.append(RowRun(first, len(shard), tuple(parts)))
    layout = RowLayout(tuple(files), codec.row_bytes, tuple(runs))
    model_id = f"{int(rows.int().sum()) % 2**32:032x}"
    return TableSource(str(folder), "checkpoint", spec, codec, layout, model_id)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches."""
    with folder_for_all() as folder:
        yield folder


@pytest.fixture
def make_source(tmp_path: Path) -> Callable[..., tuple[TableSource, torch.Tensor]]:
    """`make_source(codec="fp8", seed=0, **spec)`: a table in shard files, and its rows."""

    def make(
        codec: str = "fp8", seed: int = 0, folder: Path = tmp_path, **geometry: int
    ) -> tuple[TableSource, torch.Tensor]:
        spec = make_spec(**geometry)
        rows, described = encode_table(spec, codec, seed)
        return write_source(folder / f"{codec}-{seed}", spec, rows, described), rows

    return make
