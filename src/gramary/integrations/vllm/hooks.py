"""What an engine that asks for gramary changes in its processes: classes of models, checks."""

from __future__ import annotations

from typing import Any

from gramary.integrations.vllm.architectures import ARCHITECTURES, DRAFT_ARCHITECTURES, MODULE
from gramary.integrations.vllm.model_check import verify
from gramary.settings import mark_vllm_children


def install() -> None:
    """Registers gramary's classes under the stock architectures' names; again does nothing.

    An engine in this process that does not ask for gramary runs as before: the classes ask the
    engine's own configuration. Processes that are started from here on do the same.

    Raises:
        UnsupportedError: this vLLM is not supported.
    """
    import vllm
    from vllm.model_executor.model_loader import utils as loader
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models import config as configs
    from vllm.platforms import current_platform

    from gramary.integrations.vllm.versions import require_seams, require_version

    require_version(vllm.__version__, current_platform.is_cpu())
    require_seams()
    mark_vllm_children()
    for name, place in ARCHITECTURES.items():
        if getattr(ModelRegistry.models.get(name), "module_name", None) != MODULE:
            ModelRegistry.register_model(name, place)
            # Classes that vLLM found for earlier engines of this process.
            loader._MODEL_ARCH_BY_HASH.clear()
    for name in (*ARCHITECTURES, *DRAFT_ARCHITECTURES):
        stock = configs.MODELS_CONFIG_MAP[name]
        if not hasattr(stock, "before_gramary"):
            configs.MODELS_CONFIG_MAP[name] = _checked(stock)


def _checked(stock: type[Any]) -> type[Any]:
    """Returns a subclass of vLLM's check of a model's configuration that knows gramary."""

    class WithRows(stock):
        """The stock check; for an engine with gramary, without what gramary lifts."""

        before_gramary = stock

        @staticmethod
        def verify_and_update_config(vllm_config: Any) -> None:
            """Checks as the stock class does; see `model_check.verify`."""
            verify(stock.verify_and_update_config, vllm_config)

    WithRows.__name__ = WithRows.__qualname__ = stock.__name__
    return WithRows


__all__ = ["install"]
