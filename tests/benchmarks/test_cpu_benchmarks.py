"""Every CPU benchmark of lookups runs on small cases and gives a valid receipt."""

from types import ModuleType

import pytest

from benchmarks import embed_cpu, harness, ngram_ids, service
from benchmarks.receipts import schema as receipts


@pytest.mark.parametrize(
    "module", [ngram_ids, embed_cpu, service], ids=lambda module: module.__name__
)
def test_smoke(module: ModuleType) -> None:
    receipt = harness.run(module.BENCHMARK, smoke=True, command=["python"])
    receipts.validate(receipt)
    assert all(case["check"]["compared"] > 0 for case in receipt["cases"])
