"""A plugin of vLLM's for tests: what this model needs on a CPU, with and without gramary.

It changes a module when that is imported and not before, so that where the model is not used,
nothing of it is loaded.

- The layer's convolution is a function of torch: Triton's interpreter refuses the kernel's masks.
- Its gate and the glue between the model's streams are functions of torch too: interpreted, they
  take nearly all of the time.
- `GRAMARY_TESTS_STOCK_STAGES=1` lifts stock vLLM's refusal of pipeline stages, for a control that
  has the same stages and vLLM's own table.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

LAYER = "vllm.models.qwen4_exp.nvidia.ple_layer"
STREAMS = "vllm.models.qwen4_exp.nvidia.hyperconnection"
STREAM_KERNELS = (
    "grouped_gemma_rmsnorm",
    "hc_combine",
    "hc_combine_norm",
    "hc_gate_mix",
    "hc_silu",
)
STATE = "vllm.models.qwen4_exp.nvidia.model_state"
CONFIGS = "vllm.model_executor.models.config"
STAGES = "GRAMARY_TESTS_STOCK_STAGES"


def register() -> None:
    """Called by vLLM in each of its processes."""
    changes: dict[str, Callable[[Any], None]] = {
        LAYER: replace_layer_kernels,
        STREAMS: replace_stream_kernels,
    }
    if os.environ.get(STAGES) == "1":
        changes |= {STATE: allow_stages_of_state, CONFIGS: allow_stages_of_config}
    waiting = {}
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
        else:
            waiting[name] = change
    sys.meta_path.insert(0, ChangingFinder(waiting))


def replace_layer_kernels(module: Any) -> None:
    """Gives the layer with the table its functions of torch."""
    from cpu_convolution import ple_conv
    from cpu_gate import ple_gate

    module.ple_conv, module.ple_gate = ple_conv, ple_gate


def replace_stream_kernels(module: Any) -> None:
    """Gives every layer the functions of torch that have the kernels' names."""
    import cpu_hyper_connections

    for name in STREAM_KERNELS:
        assert hasattr(module, name)
        setattr(module, name, getattr(cpu_hyper_connections, name))


def allow_stages_of_state(module: Any) -> None:
    """Hides the number of stages while stock's state is made, which refuses more than one."""
    stock = module.Qwen4ExpModelState.__init__

    def make(self: Any, vllm_config: Any, *args: Any) -> None:
        parallel = vllm_config.parallel_config
        number, parallel.pipeline_parallel_size = parallel.pipeline_parallel_size, 1
        try:
            stock(self, vllm_config, *args)
        finally:
            parallel.pipeline_parallel_size = number

    module.Qwen4ExpModelState.__init__ = make


def allow_stages_of_config(module: Any) -> None:
    """Hides the layers that have a table while stock's check of stages runs."""
    stock = module.Qwen4ExpForCausalLMConfig.verify_and_update_config

    def verify(vllm_config: Any) -> None:
        text = vllm_config.model_config.hf_text_config
        layers, text.ple_layer_ids = text.ple_layer_ids, []
        try:
            stock(vllm_config)
        finally:
            text.ple_layer_ids = layers

    module.Qwen4ExpForCausalLMConfig.verify_and_update_config = staticmethod(verify)


class ChangingFinder(MetaPathFinder):
    """Finds the named modules as Python does, and changes each when it has been executed."""

    def __init__(self, changes: dict[str, Callable[[Any], None]]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the module's own specification with a loader that changes it."""
        change = self._changes.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if change else None
        if change and spec and spec.loader:
            spec.loader = _ChangingLoader(spec.loader, change)
        return spec


class _ChangingLoader(Loader):
    def __init__(self, loader: Loader, change: Callable[[Any], None]) -> None:
        self._loader, self._change = loader, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)
