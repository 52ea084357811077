"""The choice of the module that carries the PLE operations out."""

from __future__ import annotations

from typing import cast

from gramary.errors import ArgumentError, DependencyError, UnsupportedError
from gramary.ops.gate_conv import Backend, Caps


def backend_for(caps: Caps, name: str | None = None) -> Backend:
    """Returns the backend module of a device, or the one asked for by name.

    Args:
        caps: the plan's caps; their device decides.
        name: "cpu" or "triton" instead; "triton" on the CPU needs Triton's interpreter.

    Raises:
        ArgumentError: no backend of that name.
        UnsupportedError: no backend for the device, or not for this combination.
        DependencyError: Triton is needed and missing.
    """
    kind = caps.device.type
    chosen = name or {"cpu": "cpu", "cuda": "triton"}.get(kind)
    if chosen is None:
        raise UnsupportedError(f"device: expected cpu or cuda, got {caps.device}")
    if chosen == "cpu":
        if kind != "cpu":
            raise UnsupportedError(f"backend 'cpu' cannot run on {caps.device}")
        from gramary.ops._cpu import gate_conv as cpu

        return cast(Backend, cpu)
    if chosen != "triton":
        raise ArgumentError(f"backend: expected 'cpu' or 'triton', got {chosen!r}")
    try:
        import triton
    except ModuleNotFoundError as error:
        raise DependencyError(
            "the PLE operations on CUDA need triton: pip install 'gramary[cuda]'"
        ) from error
    if kind == "cpu" and not triton.knobs.runtime.interpret:
        raise UnsupportedError("backend 'triton' on a CPU needs TRITON_INTERPRET=1 at start")
    from gramary.ops._triton import gate_conv as compiled

    return cast(Backend, compiled)


__all__ = ["backend_for"]
