"""Row ids of a batch on the CPU: the native hash against Hugging Face's torch code."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.harness import Benchmark, Case, main
from benchmarks.hugging_face import make_module
from benchmarks.table_batch import SPEC, make_tokens, require_equal
from gramary import ngram_ids
from gramary.native import _core


def build(smoke: bool) -> Iterator[Case]:
    """Yields a case for each batch size; the largest carries the promise."""
    for num_tokens in (1, 64) if smoke else (1, 64, 1024, 8192):
        yield make_case(num_tokens, smoke)


def make_case(num_tokens: int, smoke: bool) -> Case:
    """Returns the same ids by both; the native result buffer is made once."""
    token_ids, query_start_loc = make_tokens(num_tokens)
    module = make_module(SPEC, None)
    out = torch.empty(num_tokens, SPEC.num_heads, dtype=torch.int64)

    def native() -> torch.Tensor:
        return ngram_ids(SPEC, token_ids, query_start_loc, out=out)

    def hugging_face() -> torch.Tensor:
        with torch.inference_mode():
            return module(token_ids[None], None)[0]

    return Case(
        name=f"{num_tokens} tokens",
        parameters={
            "num_tokens": num_tokens,
            "num_heads": SPEC.num_heads,
            "num_rows": SPEC.num_rows,
            "torch_threads": torch.get_num_threads(),
            "native_threads": _core.default_num_threads(),
            "seed": 0,
        },
        candidates={"hugging face": hugging_face, "native": native},
        baseline="hugging face",
        check=lambda: require_equal("native", native(), hugging_face()),
        checked="native ids equal Hugging Face's, bit for bit",
        moved_bytes=num_tokens * 8 * (1 + SPEC.num_heads),
        cache_note="the same tokens in every call",
        targets={"native": 1 / 5} if num_tokens == 8192 else {},
        num_samples=3 if smoke else 25,
    )


BENCHMARK = Benchmark(
    name="ngram_ids",
    build=build,
    sources=["csrc/base/*", "csrc/hash/*", "src/gramary/native/hash.py", "src/gramary/ops/hash.py",
             "src/gramary/ops/_cpu/hash.py", "src/gramary/flat_batch.py", "benchmarks/ngram_ids.py",
             "benchmarks/hugging_face.py", "benchmarks/table_batch.py"],
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
