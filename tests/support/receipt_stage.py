"""A small valid receipt, and a run of one of counts."""

from typing import Any

from benchmarks.receipts import schema as receipts


def make_receipt() -> dict:
    """Returns a small valid receipt."""
    samples = {"torch": [4.0, 5.0, 6.0, 5.5], "gramary": [1.0, 2.0, 1.5, 1.0]}
    case = {
        "name": "fp8 8192 tokens",
        "parameters": {"tokens": 8192},
        "unit": "us",
        "timer": "cpu",
        "cache": "warm",
        "cache_note": "second pass over the same rows",
        "check": {"what": "equal bits", "compared": 131072},
        "bytes": {"moved": 20971520, "floor": None, "basis": "not known"},
        **receipts.compare(samples, "torch", {"gramary": 0.5}),
    }
    return {
        "schema": receipts.SCHEMA,
        "name": "embed",
        "command": ["python", "-m", "benchmarks.embed"],
        "revision": {"commit": "0" * 40, "clean": True},
        "sources": {"csrc/hash/kernel.cpp": "ab" * 32},
        "taken_at": "2026-01-01T00:00:00+00:00",
        "hardware": {
            "cpu": "some processor",
            "num_cpus": 2,
            "simd": "avx2",
            "memory_bytes": 1 << 34,
            "gpus": [{"name": "some GPU", "memory_bytes": 1 << 37, "capability": "9.0"}],
        },
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "cases": [case],
    }


def make_run(**changes: Any) -> dict[str, Any]:
    """Returns a run that passed, with fields changed."""
    run = {"name": "a run", "parameters": {}, "seconds": 1.5, "counts": {"good": 2}, "failures": []}
    return run | changes
