"""The configuration of an engine that asks for gramary: what is refused, and what is set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gramary.errors import UnsupportedError
from gramary.integrations.vllm.architectures import ARCHITECTURES
from gramary.integrations.vllm.hooks import install
from gramary.integrations.vllm.options import chosen, is_by_environment

WORKERS = {
    "cuda": "gramary.integrations.vllm.cuda_worker.WorkerWithRows",
    "cpu": "gramary.integrations.vllm.cpu_worker.WorkerWithRows",
}


def create(make_stock: Callable[[], Any], additional_config: Mapping[str, Any]) -> Any:
    """Returns the configuration of an engine that asks for gramary, checked.

    Args:
        make_stock: makes it as vLLM does.
        additional_config: the engine's own; see `options`.

    Raises:
        ArgumentError: an option is wrong.
        UnsupportedError: gramary does not work in this vLLM, or with this engine's configuration.
    """
    options = chosen(additional_config)
    assert options is not None
    install()
    vllm_config = make_stock()
    architecture = vllm_config.model_config.architecture
    if architecture not in ARCHITECTURES or not _table_layers(vllm_config):
        if is_by_environment(additional_config):
            return vllm_config
        raise UnsupportedError(
            f"gramary: the model {vllm_config.model_config.model!r} ({architecture}) has no n-gram "
            f"table; it serves {' and '.join(ARCHITECTURES)} with ple_layer_ids: remove the option"
        )
    require_supported(vllm_config)
    vllm_config.parallel_config.worker_cls = WORKERS[_platform()]
    return vllm_config


def require_supported(vllm_config: Any) -> None:
    """Raises UnsupportedError, with the remedy, for what gramary cannot serve."""
    for is_found, what in _REFUSALS:
        if is_found(vllm_config):
            raise UnsupportedError(f"gramary: {what}")


def _table_layers(vllm_config: Any) -> list[int]:
    return list(getattr(vllm_config.model_config.hf_text_config, "ple_layer_ids", None) or ())


def _platform() -> str:
    from vllm.platforms import current_platform

    return "cuda" if current_platform.is_cuda() else "cpu" if current_platform.is_cpu() else ""


def _has_own_worker(vllm_config: Any) -> bool:
    stock = ("auto", "vllm.v1.worker.gpu_worker.Worker", "vllm.v1.worker.cpu_worker.CPUWorker")
    return vllm_config.parallel_config.worker_cls not in (*stock, *WORKERS.values())


_REFUSALS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (
        lambda _: _platform() == "",
        "vLLM runs on a platform other than CUDA and CPU; ROCm and XPU are not supported yet",
    ),
    (
        lambda config: not config.use_v2_model_runner,
        "vLLM chose its V1 model runner, which does not give the tokens before a request's: remove "
        "what makes it choose so (its log names it), or set VLLM_USE_V2_MODEL_RUNNER=1",
    ),
    (_has_own_worker, "worker_cls is another class; gramary brings its own: remove --worker-cls"),
    (
        lambda config: config.model_config.enable_prompt_embeds,
        "prompt_embeds have no tokens to look rows up by: remove --enable-prompt-embeds",
    ),
    (
        lambda config: getattr(config.parallel_config, "prefill_context_parallel_size", 1) > 1,
        "context-parallel prefill gives a rank parts of a prompt only: use "
        "--prefill-context-parallel-size 1",
    ),
    (
        lambda config: config.parallel_config.enable_dbo or config.parallel_config.ubatch_size > 1,
        "dual-batch overlap runs two batches at once: remove --enable-dbo and --ubatch-size",
    ),
    (
        lambda config: config.parallel_config.enable_elastic_ep,
        "elastic expert parallelism changes the ranks while they run: remove --enable-elastic-ep",
    ),
)


__all__ = ["create", "require_supported"]
