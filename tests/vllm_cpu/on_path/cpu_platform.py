"""A plugin that vLLM loads when it looks for its platform: what a CPU lacks before any model.

Plugins for platforms are the only ones of vLLM's that run this early, while `vllm` is imported.
"""

from importlib.util import find_spec
from pathlib import Path


def register() -> None:
    """Puts both in place. Returns no platform, so vLLM finds its own: the CPU's."""
    interpret_kernels()
    declare_image_operations()


def interpret_kernels() -> None:
    """Makes Triton's interpreter count as a driver.

    vLLM turns every Triton kernel into a placeholder where Triton has no driver, and Triton's
    wheels bring drivers of GPUs only. The interpreter, chosen by `TRITON_INTERPRET=1`, needs none,
    so one that calls itself "cpu" and does nothing is enough.
    """
    from triton import backends

    backends.backends.clear()
    backends.backends["cpu"] = _Backend


def declare_image_operations() -> None:
    """Declares torchvision's operations where its own library does not load.

    This model's image part imports torchvision, also where no image comes. Its wheel on the index
    is compiled against a build of torch for GPUs, and then describes operations that do not exist.
    """
    import torch

    spec = find_spec("torchvision")
    assert spec is not None
    assert spec.origin is not None
    try:
        torch.ops.load_library(Path(spec.origin).parent / "_C.so")
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        library.define("qnms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        _libraries.append(library)


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", 0, 1)


class _Backend:
    driver = _Driver


# Operations live as long as the library's object.
_libraries: list[object] = []
