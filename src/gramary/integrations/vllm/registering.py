"""What vLLM calls in each of its processes, before it knows whether an engine asks for gramary.

This file imports no torch and no vLLM.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from gramary.settings import in_vllm_child

ENGINE_ARGUMENTS = "vllm.engine.arg_utils"


def register() -> None:
    """Prepares this process; vLLM calls it, once or more.

    Raises:
        UnsupportedError: a process of an engine that gramary serves runs a vLLM that is not
            supported.
    """
    if in_vllm_child():
        from gramary.integrations.vllm.hooks import install

        install()
    # Only the process that makes engines has this module.
    if arguments := sys.modules.get(ENGINE_ARGUMENTS):
        watch(arguments.EngineArgs)


def watch(engine_args: type[Any]) -> None:
    """Has `engine_args.create_engine_config` see to an engine that asks for gramary."""
    stock = engine_args.create_engine_config
    if hasattr(stock, "before_gramary"):
        return

    @functools.wraps(stock)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        from gramary.integrations.vllm.options import is_asked

        if not is_asked(self.additional_config):
            return stock(self, *args, **kwargs)
        from gramary.integrations.vllm.engine_config import create

        return create(functools.partial(stock, self, *args, **kwargs), self.additional_config)

    create_engine_config.before_gramary = stock  # type: ignore[attr-defined]
    engine_args.create_engine_config = create_engine_config


__all__ = ["register"]
