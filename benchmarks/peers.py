"""Comparing with one peer only: whose candidates are whose, and cases cut down to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from benchmarks.harness import Benchmark, Case, MeasuredCase

# Candidates are named after what they call; these are the first words of each peer's.
PEERS = {
    "vllm": ("vllm",),
    "transformers": ("hugging face",),
    "torch": ("index_select", "torch", "safetensors + torch"),
}


def peer_of(candidate: str) -> str | None:
    """Returns the peer that a candidate belongs to; None is gramary, or a bound."""
    name = candidate.lower()
    return next((peer for peer, words in PEERS.items() if name.startswith(words)), None)


def against(benchmark: Benchmark, peer: str) -> Benchmark:
    """Returns a benchmark of the cases in which `peer` takes part, with it as the baseline."""

    def build(smoke: bool) -> Iterator[Case | MeasuredCase]:
        for case in benchmark.build(smoke):
            if chosen := with_baseline(case, peer):
                yield chosen

    return dataclasses.replace(benchmark, build=build)


def with_baseline(case: Case | MeasuredCase, peer: str) -> Case | MeasuredCase | None:
    """Returns the case without other peers and with `peer` as the baseline; None without it."""
    field = "candidates" if isinstance(case, Case) else "samples"
    own = {
        name: work for name, work in getattr(case, field).items() if peer_of(name) in (None, peer)
    }
    baseline = next((name for name in own if peer_of(name) == peer), None)
    if baseline is None:
        return None
    # A promise is about the baseline it was made for.
    targets = case.targets if baseline == case.baseline else {}
    return dataclasses.replace(case, **{field: own, "baseline": baseline, "targets": targets})
