"""Every GPU benchmark of the PLE operations and of the offload runs on small cases."""

from types import ModuleType

import pytest

from benchmarks import cold_prefill, gpu_offload, gpu_state, harness
from benchmarks.receipts import schema as receipts


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("module", "num_cases"),
    [(gpu_state, 2), (gpu_offload, 5), (cold_prefill, 2)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_smoke(module: ModuleType, num_cases: int) -> None:
    receipt = harness.run(module.BENCHMARK, smoke=True, command=["python"])
    receipts.validate(receipt)
    assert len(receipt["cases"]) == num_cases
