"""Kernels compiled once, for a plan, with nothing read off the arguments of a later launch.

Triton's own launcher compiles again where an integer turns 1, a multiple of 16 or larger than 32
bits, and where an address is no multiple of 16. A `Kernel` is compiled from pinned stand-ins for
its arguments instead and then launched as it is, whatever the arguments are.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from triton import knobs
from triton.runtime.jit import MockTensor

# An integer that Triton passes as 64 bits, and what it would conclude from a multiple of 16.
WIDE = 1 << 40


class PinnedTensor(MockTensor):  # type: ignore[misc]
    """Stands for every tensor of a dtype; only an aligned one is known to start at 16 bytes."""

    def __init__(self, dtype: torch.dtype, is_aligned: bool) -> None:
        super().__init__(dtype)
        self._address = 0 if is_aligned else 8

    def data_ptr(self) -> int:
        """The address that Triton looks at."""
        return self._address


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel as a plan launches it.

    Attributes:
        function: the `triton.jit` function; its run-time parameters come first.
        parameters: names of its run-time parameters, in the order of its signature.
        constants: its constexpr parameters, in that order.
        grid: programs, where the plan decides them.
        compiled: what the compiler made; None under Triton's interpreter.
    """

    function: Any
    parameters: tuple[str, ...]
    constants: dict[str, Any]
    grid: int = 0
    compiled: Any = None

    @classmethod
    def prepare(
        cls,
        function: Any,
        pins: dict[str, Any],
        constants: dict[str, Any],
        *,
        num_warps: int,
        grid: int = 0,
        **options: Any,
    ) -> Kernel:
        """Compiles a kernel for the current device and loads it there.

        Args:
            function: the `triton.jit` function.
            pins: a stand-in for each parameter, by name; others are ignored.
            constants: a value for each constexpr parameter, by name; others are ignored.
            num_warps: warps of a program.
            grid: programs of a launch, if they are known.
            **options: further options of the compiler.
        """
        names = list(function.arg_names)
        chosen = {name: constants[name] for name in names if name in constants}
        parameters = tuple(name for name in names if name not in chosen)
        compiled = None
        if not knobs.runtime.interpret:
            compiled = function.warmup(
                *(pins[name] for name in parameters),
                **chosen,
                grid=(1,),
                num_warps=num_warps,
                # A product is rounded before it is added to, as in the model.
                enable_fp_fusion=False,
                **({"launch_pdl": True} if chosen["PDL"] else {}),
                **options,
            )
            compiled._init_handles()
        return cls(function, parameters, chosen, grid, compiled)

    def launch(self, values: dict[str, Any], *, grid: int | None = None) -> None:
        """Launches on the current stream of the current device, the one it was prepared on.

        Args:
            values: an argument for each run-time parameter, by name; others are ignored.
            grid: programs, where the plan did not decide them.
        """
        size = (self.grid if grid is None else grid, 1, 1)
        arguments = [values[name] for name in self.parameters]
        if self.compiled is None:
            self.function[size](*arguments, **self.constants)
        else:
            self.compiled[size](*arguments, *self.constants.values())
