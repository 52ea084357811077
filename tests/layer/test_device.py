"""PLELayer on a GPU equals PLELayer on the CPU."""

import pytest
import torch
from tolerances import GATE_CONV

from gramary.layer import PLEGeometry, PLELayer, PLEState

CONFIG = {
    "vocab_size": 60, "eos_token_id": 7, "hidden_size": 96, "hc_count": 4, "ngram_size": 3,
    "heads_per_ngram": 4, "ple_embed_dim": 64, "ple_conv_kernel_size": 4, "seed": 5,
    "ngram_vocab_size_base": 50, "ple_layer_ids": [2], "make_ngram_vocab_size_divisible_by": 8,
    "rms_norm_eps": 1e-6,
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cuda_equals_cpu(dtype: torch.dtype) -> None:
    """Prefill, decode and verification, with the same rows, keys and values."""
    geometry = PLEGeometry.from_config(CONFIG)
    cpu = PLELayer(geometry, dtype=dtype)
    for parameter in cpu.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    # One projection's sums round differently on the two devices; an identity's do not.
    torch.nn.init.eye_(cpu.value_proj.weight)
    cuda = PLELayer(geometry, dtype=dtype, device="cuda")
    cuda.load_state_dict(cpu.state_dict())
    states = [layer.new_state(2, max_speculative_tokens=2) for layer in (cpu, cuda)]
    rtol, atol = GATE_CONV[dtype]
    for length, rejected in ((19, 0), (1, 0), (3, 2), (3, 1), (40, 0), (1, 0)):
        hidden = torch.randn(2, length, geometry.channels).to(dtype)
        rows = torch.randn(2 * length, geometry.spec.embed_dim).to(dtype)
        tokens = torch.randint(0, 60, (2, length))
        expected = cpu(hidden, tokens, state=states[0], rows=rows)
        got = cuda(hidden.cuda(), tokens.cuda(), state=states[1], rows=rows.cuda())
        torch.testing.assert_close(got.cpu(), expected, rtol=4 * rtol, atol=4 * atol)
        for state in states:
            state.rewind(state.positions - rejected)
        assert same_tokens(*states)


def same_tokens(cpu: PLEState, cuda: PLEState) -> bool:
    """Whether two states are at the same positions with the same histories."""
    same_positions = torch.equal(cpu.positions, cuda.positions.cpu())
    return same_positions and torch.equal(cpu.history(), cuda.history().cpu())
