"""The reference is Hugging Face's layer: to 1e-5 in float32, bit for bit in 16 bits."""

import math

import pytest
import torch
from ple_stage import assert_same_bits
from torch.nn.functional import silu
from transformers import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextPLELayer

from gramary.ops.reference.gate_conv import conv_ref, gate_ref, norm_ref

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("streams", "hidden_size", "kernel_size"), [(4, 320, 4), (2, 33, 8)])
def test_equals_hugging_face(
    dtype: torch.dtype, streams: int, hidden_size: int, kernel_size: int
) -> None:
    generator = torch.Generator().manual_seed(hidden_size)
    config = Qwen4ExpTextConfig(
        vocab_size=50,
        eos_token_id=1,
        hidden_size=hidden_size,
        hc_count=streams,
        num_hidden_layers=4,
        ple_layer_ids=[2],
        ple_embed_dim=32,
        ple_conv_kernel_size=kernel_size,
        ngram_vocab_size_base=20,
    )
    oracle = Qwen4ExpTextPLELayer(config, layer_idx=1, ple_layer_index=0)
    with torch.no_grad():
        for parameter in oracle.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    oracle = oracle.to(dtype).requires_grad_(False).eval()
    hidden = torch.randn(1, 50, streams * hidden_size, generator=generator).to(dtype)
    tokens = torch.randint(0, 50, (1, 50), generator=generator)
    expected = oracle(hidden, tokens, None)[0]
    rows = oracle.ple_embedding(tokens, None)
    key = oracle.key_proj(rows)[0].view(50, streams, hidden_size)
    residual = hidden[0].view(50, streams, hidden_size)
    g = gate_ref(residual, key, oracle.norm_key.weight, oracle.norm_query.weight, 1e-6)
    u = g.unsqueeze(-1) * oracle.value_proj(rows)[0].unsqueeze(1)
    n = norm_ref(u, oracle.norm_conv.weight, 1e-6).flatten(1)
    history = torch.zeros(oracle.short_conv_state_len, streams * hidden_size, dtype=dtype)
    c = conv_ref(history, n, oracle.conv1d.weight.squeeze(1), config.ngram_size)
    got = u.flatten(1) + c
    if dtype == torch.float32:
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    else:
        assert_same_bits(got, expected, "contribution")


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_exponentials_of_every_16_bit_value(dtype: torch.dtype) -> None:
    """sigmoid and silu do not depend on where in a vector a 16-bit value stands.

    That is why float32 alone takes the way over float64 (see `wide_ref`). They are also within a
    last bit of the exact value.
    """
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    values = values[values.isfinite()]
    for function in (torch.sigmoid, silu):
        at_once = function(values)
        # One behind another in rows of seven: every value falls into some vector's tail.
        rows = torch.cat([function(row.clone()) for row in values.split(7)])
        assert_same_bits(rows, at_once, "in rows")
        exact = function(values.double())
        # exp(89) overflows in float32: what lies behind it, below 1e-36, becomes zero.
        step = exact.abs() * torch.finfo(dtype).eps + max(torch.finfo(dtype).tiny, 1e-36)
        assert ((at_once.double() - exact).abs() <= step).all()


def test_the_gate_of_a_zero_is_a_half() -> None:
    """sign(0) is 0, so the clamped root does not count."""
    zero = torch.zeros(1, 2, 4)
    weight = torch.zeros(8)
    assert gate_ref(zero, zero, weight, weight, 1e-6).tolist() == [[0.5, 0.5]]
    tiny = torch.full((1, 2, 4), 1e-12)
    expected = 1 / (1 + math.exp(-math.sqrt(1e-6)))
    got = gate_ref(tiny, torch.ones(1, 2, 4), weight, weight, 1.0)
    torch.testing.assert_close(got, torch.full((1, 2), expected), rtol=1e-7, atol=0)
