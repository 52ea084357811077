"""Rows of a batch on the CPU: `table.embed` against Hugging Face's module and `index_select`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.harness import Benchmark, Case, main
from benchmarks.hugging_face import make_module
from benchmarks.table_batch import SMALL_SPEC, SPEC, make_tokens, require_equal
from benchmarks.table_folder import write_table_folder
from gramary import Table, ngram_ids
from gramary.model.codecs import Codec, decode_rows_ref
from gramary.model.hashing import HashSpec
from gramary.native import _core

SCALE = torch.tensor(2e-4).item()
CODECS = {"bf16": None, "fp8": SCALE, "nvfp4": SCALE}


def build(smoke: bool) -> Iterator[Case]:
    """Yields fp8 batches against Hugging Face and `index_select`, then the codecs."""
    spec, sizes = (SMALL_SPEC, (64,)) if smoke else (SPEC, (1, 64, 1024, 8192))
    encoded = make_rows(spec, "fp8")
    rows = decode_rows_ref(Codec("fp8", spec.row_dim, SCALE), encoded, torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        shards = encoded.split(-(-spec.num_rows // 8))
        write_table_folder(Path(folder), spec, shards, SCALE)
        host = opened.enter_context(Table.open(folder, placement="host"))
        disk = opened.enter_context(Table.open(folder, placement="disk"))
        for num_tokens in sizes:
            yield against_hugging_face(num_tokens, rows, host, disk, smoke)
        for num_tokens in sizes:
            yield against_index_select(num_tokens, rows, {"fp8 host": host}, smoke)
    with contextlib.ExitStack() as opened:
        tables = {f"{name} host": opened.enter_context(load_table(spec, name)) for name in CODECS}
        yield against_index_select(sizes[-1], rows, tables, smoke)


def against_hugging_face(
    num_tokens: int, rows: torch.Tensor, host: Table, disk: Table, smoke: bool
) -> Case:
    """Returns the same rows by Hugging Face's module over bf16, and from fp8 on host and disk."""
    spec = host.spec
    token_ids, query_start_loc = make_tokens(num_tokens)
    module = make_module(spec, rows)
    out = torch.empty(num_tokens, spec.embed_dim, dtype=torch.bfloat16)

    def hugging_face() -> torch.Tensor:
        with torch.inference_mode():
            return module(token_ids[None], None)[0]

    def embed(table: Table) -> torch.Tensor:
        return table.embed(token_ids, query_start_loc, out=out)

    def check() -> int:
        expected = hugging_face()
        compared = require_equal("host", embed(host), expected)
        return compared + require_equal("disk", embed(disk), expected)

    return Case(
        name=f"fp8, {num_tokens} tokens, against Hugging Face's module over bf16",
        parameters=parameters(spec, num_tokens),
        candidates={
            "hugging face bf16": hugging_face,
            "fp8 host": lambda: embed(host),
            "fp8 disk": lambda: embed(disk),
        },
        baseline="hugging face bf16",
        check=check,
        checked="rows equal Hugging Face's, bit for bit",
        moved_bytes=moved_bytes(spec, num_tokens, host.codec),
        cache_note="the same tokens in every call; disk rows in the page cache",
        targets={"fp8 host": 1 / 4} if num_tokens == 8192 else {},
        num_samples=3 if smoke else 25,
    )


def against_index_select(
    num_tokens: int, rows: torch.Tensor, tables: dict[str, Table], smoke: bool
) -> Case:
    """Returns `table.embed`, hash included, against bf16 rows gathered by ready-made ids."""
    first = next(iter(tables.values()))
    spec = first.spec
    token_ids, query_start_loc = make_tokens(num_tokens)
    row_ids = ngram_ids(spec, token_ids, query_start_loc).flatten()
    out = torch.empty(num_tokens, spec.embed_dim, dtype=torch.bfloat16)
    selected = torch.empty(row_ids.numel(), spec.row_dim, dtype=torch.bfloat16)

    def embed(table: Table) -> torch.Tensor:
        return table.embed(token_ids, query_start_loc, out=out)

    def check() -> int:
        compared = 0
        for name, table in tables.items():
            encoded = table.lookup(row_ids, dtype=torch.uint8)
            expected = decode_rows_ref(table.codec, encoded, torch.bfloat16).view(out.shape)
            compared += require_equal(name, embed(table), expected)
        return compared

    candidates = {name: lambda table=table: embed(table) for name, table in tables.items()}
    codecs = ", ".join(tables)
    return Case(
        name=f"{codecs}, {num_tokens} tokens, against index_select(out=) over bf16",
        parameters=parameters(spec, num_tokens),
        candidates={
            "index_select bf16": lambda: torch.index_select(rows, 0, row_ids, out=selected),
            **candidates,
        },
        baseline="index_select bf16",
        check=check,
        checked="rows equal plain torch's decoding of the encoded rows, bit for bit",
        moved_bytes=moved_bytes(spec, num_tokens, first.codec),
        cache_note="the same tokens in every call",
        targets={"fp8 host": 1 / 1.5} if num_tokens == 8192 else {},
        num_samples=3 if smoke else 25,
    )


def parameters(spec: HashSpec, num_tokens: int) -> dict[str, int]:
    """Returns the sizes and the seed of a case."""
    return {
        "num_tokens": num_tokens,
        "num_heads": spec.num_heads,
        "row_dim": spec.row_dim,
        "num_rows": spec.num_rows,
        "torch_threads": torch.get_num_threads(),
        "native_threads": _core.default_num_threads(),
        "seed": 0,
    }


def moved_bytes(spec: HashSpec, num_tokens: int, codec: Codec) -> int:
    """Returns the bytes of the encoded rows read and of the bf16 rows written."""
    return num_tokens * spec.num_heads * (codec.row_bytes + 2 * spec.row_dim)


def make_rows(spec: HashSpec, name: str) -> torch.Tensor:
    """Returns random encoded rows [num_rows, row_bytes] that decode to finite numbers."""
    codec = Codec(name, spec.row_dim, CODECS[name])
    generator = torch.Generator().manual_seed(0)
    shape = (spec.num_rows, codec.row_bytes)
    # No byte above 0x7E: neither NaN in fp8 and block scales, nor in bf16 (whose exponent ends
    # with a bit of the lower byte).
    return torch.randint(0x7F, shape, dtype=torch.uint8, generator=generator)


def load_table(spec: HashSpec, name: str) -> Table:
    """Returns a host table of random rows in a codec."""
    table = Table.empty(spec, Codec(name, spec.row_dim, CODECS[name]), num_shards=1)
    table.load_shard(0, make_rows(spec, name))
    table.finish_loading()
    return table


BENCHMARK = Benchmark(
    name="embed_cpu",
    build=build,
    sources=["csrc/base/*", "csrc/hash/*", "csrc/rows/*", "src/gramary/native/rows.py",
             "src/gramary/ops/_cpu/*.py", "src/gramary/flat_batch.py", "src/gramary/reading/*.py",
             "src/gramary/table.py", "benchmarks/embed_cpu.py", "benchmarks/hugging_face.py",
             "benchmarks/table_batch.py", "benchmarks/table_folder.py"],
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
