"""Which rows of a step are requested early, against a model of vLLM's order of requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramary.integrations.vllm.step import plan_step


def make_step(requests: list[tuple[str, int, int, int, int]]) -> tuple[Any, dict[str, list[int]]]:
    """Returns vLLM's batch of (kind, length, computed, prompt length, drafts) requests."""
    order = {"drafts": 0, "decode": 1, "prefill": 2}
    requests = sorted(requests, key=lambda request: (order[request[0]], request[1]))
    prompts = {
        f"r{i}": list(range(1000 * i, 1000 * i + request[3])) for i, request in enumerate(requests)
    }
    batch = SimpleNamespace(
        req_ids=list(prompts),
        num_reqs=len(requests),
        num_tokens=sum(request[1] for request in requests),
        num_scheduled_tokens=np.array([request[1] for request in requests], dtype=np.int32),
        num_computed_tokens_np=np.array([request[2] for request in requests], dtype=np.int32),
        is_prefilling_np=np.array([request[0] == "prefill" for request in requests], dtype=bool),
        num_draft_tokens_per_req=np.array([request[4] for request in requests], dtype=np.int32),
    )
    return batch, prompts


def plan(batch: Any, prompts: dict[str, list[int]], **words: bool) -> Any:
    return plan_step(batch, prompts, **({"is_early": True, "splits_mixed": True} | words))


PREFILL, DECODE, DRAFTS = (
    ("prefill", 5, 3, 20, 0),
    ("decode", 1, 30, 20, 0),
    ("drafts", 3, 30, 20, 2),
)


def test_prompts_alone_go_early() -> None:
    batch, prompts = make_step([PREFILL, PREFILL])
    found = plan(batch, prompts)
    assert (found.num_late_requests, found.num_late_tokens, found.num_early_tokens) == (0, 0, 10)
    assert [(chunk.start, chunk.length) for chunk in found.chunks] == [(3, 5), (3, 5)]
    assert found.way == "early"


def test_a_mixed_step_is_split_behind_its_decodes() -> None:
    batch, prompts = make_step([PREFILL, DECODE, DRAFTS])
    found = plan(batch, prompts)
    assert (found.num_late_requests, found.num_late_tokens) == (2, 4)
    assert found.way == "mixed: decode"
    whole = plan(batch, prompts, splits_mixed=False)
    assert (whole.num_late_requests, whole.chunks) == (3, ())
    assert whole.way == "late: decode; split_mixed is off"


def unknown(_: Any, prompts: dict[str, list[int]]) -> None:
    prompts.clear()


def short(_: Any, prompts: dict[str, list[int]]) -> None:
    del prompts["r0"][7:]


def drafted(batch: Any, _: dict[str, list[int]]) -> None:
    batch.num_draft_tokens_per_req.fill(1)


def admitted(batch: Any, _: dict[str, list[int]]) -> None:
    batch.num_tokens -= 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (unknown, "prompt unknown"),
        (short, "beyond the prompt"),
        (drafted, "drafts"),
        (admitted, "the device decides on drafts"),
    ],
)
def test_what_the_host_does_not_know_goes_late(change: Any, reason: str) -> None:
    batch, prompts = make_step([PREFILL])
    change(batch, prompts)
    found = plan(batch, prompts)
    assert found.way == f"late: {reason}"
    assert not found.chunks


def test_the_option_off_sends_all_in_stream_order() -> None:
    batch, prompts = make_step([PREFILL])
    assert plan(batch, prompts, is_early=False).way == "late: prefill_early_request is off"


REQUESTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("prefill"), st.integers(1, 9), st.integers(0, 9), st.just(18), st.just(0)
        ),
        st.tuples(st.just("decode"), st.just(1), st.just(30), st.just(18), st.just(0)),
        st.tuples(st.just("drafts"), st.integers(2, 4), st.just(30), st.just(18), st.just(1)),
    ),
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(REQUESTS)
def test_the_parts_are_the_step(requests: list[tuple[str, int, int, int, int]]) -> None:
    batch, prompts = make_step(requests)
    found = plan(batch, prompts)
    assert found.num_late_tokens + found.num_early_tokens == batch.num_tokens
    assert found.num_late_requests + len(found.chunks) == batch.num_reqs
    # Every prefill is early: vLLM's order puts them last.
    assert len(found.chunks) == sum(request[0] == "prefill" for request in requests)
    for place, chunk in enumerate(found.chunks, start=found.num_late_requests):
        assert chunk.prompt is prompts[f"r{place}"]
        assert chunk.length == batch.num_scheduled_tokens[place]
