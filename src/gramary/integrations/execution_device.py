"""Where a module of a model computes, whatever moves its weights about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def execution_device(model: Any, module: Any) -> torch.device:
    """Returns the device on which a module of a model runs.

    accelerate's hooks bring weights from the disk or the CPU to where they are used, so where a
    weight lies now says nothing: what the nearest hook names counts. Without one it is the weight's
    own place.

    Args:
        model: the model.
        module: a module of it, with a `weight`.

    Source: `AlignDevicesHook` and `CpuOffload` of accelerate 1.15 (hooks.py).
    """
    name = next(name for name, other in model.named_modules() if other is module)
    for owner in _from_inside_out(model, name):
        device = _hooked_device(owner)
        if device is not None and device.type != "meta":
            return device
    device = module.weight.device
    assert isinstance(device, torch.device)
    return device if device.type != "meta" else torch.device("cpu")


def _from_inside_out(model: Any, name: str) -> Iterator[Any]:
    """Yields a module, what contains it, and so on up to the model."""
    while name:
        yield model.get_submodule(name)
        name = name.rpartition(".")[0]
    yield model


def _hooked_device(module: Any) -> torch.device | None:
    """Returns the execution device that a module's hook names, or None."""
    hook = getattr(module, "_hf_hook", None)
    # Several hooks may be chained; the last one has the last word.
    for one in reversed(getattr(hook, "hooks", (hook,))):
        device = getattr(one, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return None


__all__ = ["execution_device"]
