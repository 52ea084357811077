"""Random schedules of requests equal each request alone, in output and in window.

Behaviours 22, 23, 24, 26: whatever is chunked, batched, drafted, rejected, forked, exported,
resumed, finished and run again in a used slot, a request's outputs and window are those of its
own tokens run at once from scratch by the reference; nobody else's slot changes by a bit.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ple_stage import (
    EPS,
    SITES,
    Request,
    Site,
    Stage,
    assert_close,
    assert_same_bits,
)

from gramary import ple
from gramary.errors import SlotError
from gramary.ops.gate_conv import MODES
from gramary.ops.reference.gate_conv import conv_ref, gate_ref, norm_ref
from gramary.slots import SlotPool, WindowCheckpoint

NUM_TOKENS = 16
HISTORY = 2
MAX_SEQS = 3


@dataclasses.dataclass
class Story:
    """A request as the model sees it: its slot, the tokens of its stream, its lowest next start.

    The bound of a rollback is kept here apart from the pool's own.
    """

    slot: int
    tokens: list[int]
    lowest: int = 0


class Vocabulary:
    """Every token has fixed inputs, so a stream's outputs follow from its token ids."""

    def __init__(self, stage: Stage) -> None:
        caps = stage.caps
        generator = torch.Generator().manual_seed(3)
        draw = lambda *shape: torch.randn(*shape, generator=generator).to(caps.dtype)  # noqa: E731
        self.stage = stage
        self.residual = draw(NUM_TOKENS, caps.streams, caps.hidden_size)
        self.key = draw(NUM_TOKENS, caps.streams, caps.hidden_size)
        self.value = draw(NUM_TOKENS, caps.hidden_size)

    def request(self, slot: int, start: int, tokens: list[int]) -> Request:
        at = torch.tensor(tokens, dtype=torch.int64)
        return Request(slot, start, self.residual[at], self.key[at], self.value[at])

    def alone(self, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Contributions [T, S, H] and windows' last columns [state_length, C], from scratch."""
        b, caps = self.stage.binding, self.stage.caps
        weights = [w.cpu() for w in (b.k_norm_weight, b.q_norm_weight)]
        at = torch.tensor(tokens, dtype=torch.int64)
        g = gate_ref(self.residual[at], self.key[at], *weights, EPS)
        u = g.unsqueeze(-1) * self.value[at].unsqueeze(-2)
        n = norm_ref(u, b.u_norm_weight.cpu(), EPS).flatten(-2)
        history = torch.zeros(caps.state_length, caps.channels, dtype=caps.dtype)
        c = conv_ref(history, n, b.conv_weight.cpu(), caps.dilation)
        return u + c.view_as(u), torch.cat([history, n])[-caps.state_length :]


class Schedule(RuleBasedStateMachine):
    """One pool, a few requests, some kept windows; `site` and `mode` are set by a subclass."""

    site: Site
    mode: str

    @initialize(
        dtype=st.sampled_from([torch.float32, torch.bfloat16]),
        drafts=st.integers(0, 3),
        geometry=st.sampled_from([(2, 8, 4, 3), (1, 5, 2, 2), (3, 4, 3, 1)]),
        padding=st.sampled_from([0, 6]),
        num_slots=st.integers(4, 8),
    )
    def start(
        self,
        dtype: torch.dtype,
        drafts: int,
        geometry: tuple[int, int, int, int],
        padding: int,
        num_slots: int,
    ) -> None:
        streams, hidden, kernel, dilation = geometry
        self.stage = Stage(
            self.site, mode=self.mode, dtype=dtype, max_speculative_tokens=drafts,
            num_slots=num_slots, streams=streams, hidden_size=hidden, kernel_size=kernel,
            dilation=dilation, padding=padding, max_tokens=48, max_seqs=MAX_SEQS,
        )  # fmt: skip
        self.pool = SlotPool(
            self.stage.caps, self.stage.binding.conv_state, history_length=HISTORY, model_id="m"
        )
        self.vocabulary = Vocabulary(self.stage)
        self.stories: list[Story] = []
        self.kept: list[tuple[WindowCheckpoint, list[int]]] = []

    def history(self, tokens: list[int]) -> list[int]:
        return ([0] * HISTORY + tokens)[-HISTORY:]

    @precondition(lambda self: self.pool.num_free)
    @rule()
    def begin(self) -> None:
        self.stories.append(Story(self.pool.acquire(), []))

    @precondition(lambda self: self.stories)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        story = self.stories.pop(data.draw(st.integers(0, len(self.stories) - 1)))
        self.pool.release(story.slot)

    @precondition(lambda self: self.stories and self.pool.num_free)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        story = data.draw(st.sampled_from(self.stories))
        position = data.draw(st.integers(story.lowest, len(story.tokens)))
        slot = self.pool.fork(story.slot, position)
        self.stories.append(Story(slot, story.tokens[:position], story.lowest))

    @precondition(lambda self: self.kept and self.pool.num_free)
    @rule(data=st.data(), by_blob=st.booleans())
    def resume(self, data: st.DataObject, by_blob: bool) -> None:
        checkpoint, tokens = data.draw(st.sampled_from(self.kept))
        if by_blob and self.pool.num_free > 1:
            checkpoint = self.pool.import_blob(self.pool.export_blob(checkpoint))
            self.kept.append((checkpoint, tokens))
        slot = self.pool.restore(checkpoint, len(tokens), self.history(tokens))
        self.stories.append(Story(slot, list(tokens), len(tokens)))

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        checkpoint, _ = self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1)))
        self.pool.discard(checkpoint)

    @precondition(lambda self: self.stories and self.pool.num_free)
    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        story = data.draw(st.sampled_from(self.stories))
        tokens = story.tokens[: data.draw(st.integers(story.lowest, len(story.tokens)))]
        kept = self.pool.snapshot(story.slot, len(tokens), self.history(tokens))
        self.kept.append((kept, tokens))

    @precondition(lambda self: self.stories)
    @rule(data=st.data(), num_padding=st.integers(0, 2))
    def run_batch(self, data: st.DataObject, num_padding: int) -> None:
        """A mixed batch: each request rejects some of its newest tokens and runs some more."""
        batch = data.draw(st.permutations(self.stories))[: data.draw(st.integers(1, MAX_SEQS))]
        most = self.stage.caps.max_decode_tokens if self.mode == "decode" else 14
        requests, starts = [], []
        for story in batch:
            start = data.draw(st.integers(story.lowest, len(story.tokens)))
            new = data.draw(st.lists(st.integers(0, NUM_TOKENS - 1), max_size=most))
            self.pool.advance(story.slot, start, len(new))
            if new:
                story.tokens = story.tokens[:start] + new
                reach = self.stage.caps.max_decode_tokens
                story.lowest = max(story.lowest, len(story.tokens) - reach)
            requests.append(self.vocabulary.request(story.slot, start, new))
            starts.append(start)
        self.stage.load(requests, num_padding=num_padding)
        others = self.other_slots([story.slot for story in batch])
        out = self.stage.run()
        assert_same_bits(self.other_slots([s.slot for s in batch]), others, "another's slot")
        begin = 0
        for story, start, request in zip(batch, starts, requests, strict=True):
            end = begin + request.num_tokens
            if request.num_tokens:
                expected, _ = self.vocabulary.alone(story.tokens)
                assert_close(self.site, out[begin:end], expected[start:], f"slot {story.slot}")
            begin = end
        assert (out[begin : begin + num_padding] == 0).all()
        self.export(data, batch, starts)

    def export(self, data: st.DataObject, batch: list[Story], starts: list[int]) -> None:
        """Exports at random offsets, one or two a request, and commits what was written."""
        slots = torch.full((MAX_SEQS, 2), -1)
        offsets = torch.zeros(MAX_SEQS, 2, dtype=torch.int32)
        asked = []
        for i, (story, start) in enumerate(zip(batch, starts, strict=True)):
            for j in range(data.draw(st.integers(0, 2))):
                if not self.pool.num_free or len(story.tokens) == start:
                    continue
                position = data.draw(st.integers(start + 1, len(story.tokens)))
                try:
                    tokens = story.tokens[:position]
                    kept = self.pool.checkpoint(story.slot, position, self.history(tokens))
                except SlotError:
                    # A run without tokens reaches no position.
                    continue
                slots[i, j], offsets[i, j] = kept.slot, kept.offset
                asked.append((i, j, kept, tokens))
        device = self.stage.caps.device
        status = torch.full((MAX_SEQS, 2), -9, dtype=torch.int32, device=device)
        ple.export_checkpoint(
            self.stage.binding, offsets=offsets.to(device), slots=slots.to(device), status=status
        )
        assert not (status == -9).any()
        for i, j, kept, tokens in asked:
            assert self.pool.commit(kept, int(status[i, j]))
            self.kept.append((kept, tokens))

    def other_slots(self, slots: list[int]) -> torch.Tensor:
        """The whole pool, paddings included, without some slots' windows."""
        pool = self.stage.pool.clone()
        self.stage.windows_of(pool)[slots] = 0
        return pool.cpu()

    @invariant()
    def windows_are_those_of_the_tokens_alone(self) -> None:
        if not hasattr(self, "stage"):
            return
        self.pool.check_integrity()
        state, length = self.stage.binding.conv_state, self.stage.caps.state_length
        held = [(story.slot, story.tokens) for story in self.stories]
        held += [(checkpoint.slot, tokens) for checkpoint, tokens in self.kept]
        for slot, tokens in held:
            window = ple.to_chronological(state[slot], len(tokens), length)
            _, expected = self.vocabulary.alone(tokens)
            assert_close(self.site, window, expected, f"window of slot {slot}")


@pytest.mark.behaviour(22, 23, 24, 26)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("site", SITES)
def test_any_schedule_equals_each_request_alone(site: Site, mode: str) -> None:
    """Behaviours 22, 23, 24 and 26, in any order (see the head of this file)."""
    machine = type("SiteSchedule", (Schedule,), {"site": site, "mode": mode})
    max_examples, steps = (25, 25) if site.backend == "cpu" else (6, 15)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
