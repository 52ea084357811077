"""The option of a vLLM engine: what `additional_config["gramary"]` may say.

This file imports no torch and no vLLM.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from gramary.errors import ArgumentError
from gramary.settings import placement_for_vllm

KEY = "gramary"


@dataclasses.dataclass(frozen=True)
class Options:
    """How gramary serves the rows of one engine.

    Attributes:
        placement: where the rows go, in the grammar of `gramary.plan_placement`; per rank.
        table: a pack, or the folder of a checkpoint, to take the rows from; None is the model's own
            folder.
        kv_gib: device memory that `device=auto` leaves for the KV cache, in GiB; None derives it
            from vLLM's own configuration: one request of the model's greatest length.
        prefill_early_request: whether the rows of prefill chunks are requested before their
            forward begins.
        split_mixed: whether the prefill part of a batch that also decodes is requested early.
        worker: where rows are fetched: "thread" (of the engine's process) or "process".
        num_threads: threads that fetch rows; None is half of the usable CPUs, at most 8.
        rounding: "vllm" rounds the scale of fp8 rows to the model's dtype first, as vLLM does;
            "float32" rounds once, as transformers does.
        verify_early: compare the tokens of early requests with those the forward reads; it waits
            for the device at each step.

    Raises:
        ArgumentError: a value is not one of those.
    """

    placement: str = "host"
    table: str | None = None
    kv_gib: float | None = None
    prefill_early_request: bool = True
    split_mixed: bool = True
    worker: str = "thread"
    num_threads: int | None = None
    rounding: str = "vllm"
    verify_early: bool = False

    def __post_init__(self) -> None:
        for field, accepts, expected in _RULES:
            value = getattr(self, field)
            if not accepts(value):
                raise ArgumentError(
                    f'additional_config["{KEY}"]["{field}"]: expected {expected}, got {value!r}'
                )

    @classmethod
    def parse(cls, value: object) -> Options:
        """Returns the options that a JSON value stands for.

        Args:
            value: an object with the attributes' names, or a string, which is the placement.

        Raises:
            ArgumentError: it is of another kind, or has an unknown name or a wrong value.
        """
        if isinstance(value, str):
            return cls(placement=value)
        if not isinstance(value, Mapping):
            raise ArgumentError(
                f'additional_config["{KEY}"]: expected an object such as '
                f'{{"placement": "host"}}, got {value!r}'
            )
        names = [field.name for field in dataclasses.fields(cls)]
        for name in value:
            if name not in names:
                raise ArgumentError(
                    f'additional_config["{KEY}"]: expected names among {", ".join(names)}, got '
                    f"{name!r}"
                )
        return cls(**value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_size(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0  # type: ignore[operator,arg-type]


_RULES: tuple[tuple[str, Any, str], ...] = (
    ("placement", _is_text, 'a placement such as "device=8GiB,host=auto,disk"'),
    ("table", lambda value: value is None or _is_text(value), "a path"),
    ("kv_gib", lambda value: value is None or _is_size(value), "GiB, at least 0"),
    ("prefill_early_request", lambda value: isinstance(value, bool), "true or false"),
    ("split_mixed", lambda value: isinstance(value, bool), "true or false"),
    ("worker", lambda value: value in ("thread", "process"), '"thread" or "process"'),
    (
        "num_threads",
        lambda value: value is None or (type(value) is int and 1 <= value <= 1024),
        "an integer from 1 to 1024",
    ),
    ("rounding", lambda value: value in ("vllm", "float32"), '"vllm" or "float32"'),
    ("verify_early", lambda value: isinstance(value, bool), "true or false"),
)


def is_asked(additional_config: object) -> bool:
    """Returns whether an engine with such a configuration asks for gramary."""
    return _value(additional_config) not in (None, False)


def chosen(additional_config: object) -> Options | None:
    """Returns the options of an engine, or None where it does not ask for gramary.

    Raises:
        ArgumentError: as `Options.parse`.
    """
    value = _value(additional_config)
    return None if value in (None, False) else Options.parse(value)


def is_by_environment(additional_config: object) -> bool:
    """Returns whether only the environment asks, which concerns models with tables alone."""
    return not (isinstance(additional_config, Mapping) and KEY in additional_config)


def _value(additional_config: object) -> object:
    if not is_by_environment(additional_config):
        assert isinstance(additional_config, Mapping)
        return additional_config[KEY]
    return placement_for_vllm()


__all__ = ["Options", "chosen", "is_asked", "is_by_environment"]
