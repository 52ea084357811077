"""Kinds 15 and 26: what a forward that breaks off, or is refused, does to the requests' state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from interrupts import interrupt_everywhere

from gramary import PLELayer
from gramary.errors import ArgumentError, GramaryError, SlotError
from gramary.layer import PLEState

DRAFTS = 2
# Where windows are written and the state is taken on; what computes has no part in it.
WITHIN = ("layer/module.py", "layer/state.py", "layer/batch.py", "_cpu/gate_conv.py")


@pytest.fixture(scope="module")
def layer(make_checkpoint: Callable[..., Path]) -> Iterator[PLELayer]:
    module = PLELayer.from_checkpoint(make_checkpoint(codec="bf16"))
    yield module
    assert module.table is not None
    module.table.close()


def tensors_of(state: PLEState) -> list[torch.Tensor]:
    return [state.conv_state, state.tokens, state.positions, state._highest, state._base]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compares bits: what no token has written yet may be no number."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def batch_of(layer: PLELayer, lengths: list[int], seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    hidden = torch.randn(total, layer.geometry.channels, generator=generator).to(layer.dtype)
    tokens = torch.randint(50, (total,), generator=generator)
    return hidden, tokens, torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


@pytest.mark.parametrize(
    ("lengths", "can_always_be_repeated"),
    [([1, 1], True), ([3, 0], True), ([4, 1], False), ([30, 2], False)],
)
def test_kind_15_a_forward_that_is_interrupted_can_be_repeated_or_says_that_it_cannot(
    layer: PLELayer, lengths: list[int], can_always_be_repeated: bool
) -> None:
    """Never wrong outputs: a window that was overwritten is refused, with what to do instead."""
    begun = layer.new_state(2, max_speculative_tokens=DRAFTS)
    layer(*batch_of(layer, [13, 20], 1), state=begun)
    batch = batch_of(layer, lengths, 2)
    expected_state = copy.deepcopy(begun)
    expected = layer(*batch, state=expected_state)
    states: list[PLEState] = []
    outcomes: set[str] = set()

    def check() -> None:
        (state,) = states
        if not torch.equal(state.positions, begun.positions):
            # The call was through with everything but its return.
            outcomes.add("done")
        else:
            assert torch.equal(state.history(), begun.history())
            if not can_always_be_repeated and state._is_running:
                with pytest.raises(SlotError, match=r"begin its requests again with new_state\(\)"):
                    layer(*batch, state=state)
                outcomes.add("refused")
                return
            assert torch.equal(layer(*batch, state=state), expected)
            outcomes.add("repeated")
        for got, wanted in zip(tensors_of(state)[:3], tensors_of(expected_state), strict=False):
            assert same_bits(got, wanted)

    interrupt_everywhere(
        lambda: layer(*batch, state=states[0]),
        check,
        before=lambda: states.__setitem__(slice(None), [copy.deepcopy(begun)]),
        within=WITHIN,
        every=3,
    )
    assert outcomes == {"done", "repeated"} | (set() if can_always_be_repeated else {"refused"})


def test_kind_26_a_forward_that_is_refused_changes_no_state(layer: PLELayer) -> None:
    state = layer.new_state(2, max_speculative_tokens=DRAFTS)
    layer(*batch_of(layer, [5, 6], 1), state=state)
    hidden, tokens, starts = batch_of(layer, [30, 2], 2)
    wide = PLEState.fresh(layer.geometry, 2, max_speculative_tokens=DRAFTS, dtype=torch.float32)
    rows = torch.zeros(32, layer.geometry.spec.embed_dim, dtype=layer.dtype)
    others = [tensor.clone() for tensor in tensors_of(state)]
    calls: list[Callable[[], object]] = [
        lambda: layer(hidden.float(), tokens, starts, state=state),
        lambda: layer(hidden, tokens, starts[:-1], state=state),
        lambda: layer(hidden, tokens + 10**6, starts, state=state),
        lambda: layer(hidden, tokens, starts, state=state, rows=hidden),
        lambda: layer(hidden, tokens, starts, state=wide),
        lambda: layer(hidden, tokens, starts * 2, state=state, rows=rows),
        lambda: layer(hidden, tokens, starts.flip(0), state=state, rows=rows),
        lambda: layer(hidden, tokens, starts + 1, state=state, rows=rows),
        lambda: state.advance(tokens, starts[:-1]),
        lambda: state.advance(tokens[:5], starts),
        lambda: state.advance(tokens, -starts),
        lambda: state.rewind([5, 7]),
        lambda: state.rewind([-1, 0]),
        lambda: state.rewind([5]),
    ]
    for call in calls:
        with pytest.raises(GramaryError):
            call()
        for got, before in zip(tensors_of(state), others, strict=True):
            assert same_bits(got, before)
        assert not state._is_running
        assert not wide._is_running
    state.rewind([5, 5])
    layer(hidden, tokens, starts, state=state)


def test_kind_15_a_state_that_was_torn_is_refused_until_its_requests_begin_again(
    layer: PLELayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = layer.new_state(1)
    batch = batch_of(layer, [40], 1)

    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    layer(*batch_of(layer, [3], 3), state=state)
    with monkeypatch.context() as patched:
        patched.setattr("gramary.ple.run", broken)
        with pytest.raises(KeyboardInterrupt):
            layer(*batch, state=state)
    for _ in range(2):
        with pytest.raises(SlotError, match="request 0 at position 3"):
            layer(*batch, state=state)
    # The remedy.
    again = layer.new_state(1)
    layer(*batch, state=again)
    with pytest.raises(ArgumentError, match="state: expected one of 1 requests"):
        layer(*batch, state=layer.new_state(2))
