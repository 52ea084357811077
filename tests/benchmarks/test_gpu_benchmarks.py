"""Every GPU benchmark of the PLE operations runs on small cases and gives a valid receipt."""

import pytest
import torch

from benchmarks import gpu_state, harness
from gramary import receipts


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_smoke() -> None:
    receipt = harness.run(gpu_state.BENCHMARK, smoke=True, command=["python"])
    receipts.validate(receipt)
    assert len(receipt["cases"]) == 2
