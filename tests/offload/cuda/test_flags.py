"""The tiny kernel that stands in for a stream memory operation, interpreted."""

import pytest
import torch

from gramary.offload.cuda.flags import wait_word

# With a GPU, test_on_gpu.py runs.
pytestmark = pytest.mark.needs("interpreter")


def word(value: int) -> torch.Tensor:
    return torch.tensor([7, value, 7], dtype=torch.int32)


@pytest.mark.parametrize(("there", "wanted"), [(1, 1), (5, 3), (-(2**31), 2**31 - 1), (3, -2)])
def test_a_word_as_new_or_newer_ends_the_wait(there: int, wanted: int) -> None:
    words = word(there)
    # Counted around: 32 bits of the number, as the host lane passes them.
    wait_word(words[1:].data_ptr(), wanted & 0xFFFFFFFF)
    assert words.tolist() == [7, there, 7]
