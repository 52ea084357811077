"""Triton's interpreter as the tests use it: kernels run on the CPU, where there is no GPU.

Four of its habits differ from a GPU's and are mended here, so that kernels need not know of it:
it truncates where a cast to bfloat16 rounds, it computes on the bits of bfloat16 as if they were
integers, it spreads one truth value over a block as whatever was compared, and (before Triton 3.9)
it multiplies signed integers as signed where `umulhi` takes their bits, and leaves them unsigned.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from typing import Any

import numpy as np
import torch


def use_interpreter() -> None:
    """Makes Triton interpret kernels; to be called before anything imports Triton."""
    if torch.cuda.is_available() or os.environ.setdefault("TRITON_INTERPRET", "1") != "1":
        return
    mend_bfloat16()
    mend_splat()
    mend_umulhi()
    patch_language_once()
    leave_out_unread_checks()
    remember_types()


def mend_bfloat16() -> None:
    """Rounds casts to bfloat16 to the nearest, ties to even, and computes through float32."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast, compute = InterpreterBuilder.cast_impl, InterpreterBuilder.binary_op

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if (src.dtype.scalar, dst_type.scalar) == (tl.float32, tl.bfloat16):
            return TensorHandle(bfloat16_bits(src.data), tl.bfloat16)
        return cast(self, src, dst_type)

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if lhs.dtype.scalar != tl.bfloat16:
            return compute(self, lhs, rhs, op)
        wide = compute(self, cast(self, lhs, tl.float32), cast(self, rhs, tl.float32), op)
        return wide if wide.data.dtype == np.bool_ else cast_impl(self, wide, tl.bfloat16)

    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.binary_op = binary_op


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """float32 -> the bits of the nearest bfloat16, as uint16."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.bfloat16().view(torch.int16).numpy().view(np.uint16)


def mend_splat() -> None:
    """Spreads a truth value over a block as truth values."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    splat = InterpreterBuilder.create_splat

    def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
        if arg.data.dtype != np.bool_:
            return splat(self, ret_ty, arg)
        return TensorHandle(np.full(ret_ty.shape, arg.data.item()), tl.int1)

    InterpreterBuilder.create_splat = create_splat


def mend_umulhi() -> None:
    """Takes the bits of signed integers for `umulhi`, and gives its result their type again."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    umulhi = InterpreterBuilder.create_umulhi

    def unsigned(handle: Any) -> Any:
        data = handle.data
        return TensorHandle(data.view(f"u{data.dtype.itemsize}"), handle.dtype)

    def create_umulhi(self: Any, lhs: Any, rhs: Any) -> Any:
        product = umulhi(self, unsigned(lhs), unsigned(rhs)).data
        return TensorHandle(product.view(lhs.data.dtype), lhs.dtype.scalar)

    InterpreterBuilder.create_umulhi = create_umulhi


def patch_language_once() -> None:
    """Lets a kernel call a function without patching Triton's language for it again.

    A module's first call patches for good; once more for each call takes milliseconds.
    """
    from triton.runtime.interpreter import InterpretedFunction

    patched_call = InterpretedFunction.__call__
    modules = set()

    def call_device_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.fn.__module__
        if module.startswith("gramary.") or module in modules:
            return self.rewrite()(*args, **kwargs)
        modules.add(module)
        return patched_call(self, *args, **kwargs)

    InterpretedFunction.__call__ = call_device_function


def leave_out_unread_checks() -> None:
    """Leaves out what is computed to find overflows, and looked at only by Triton's debug mode.

    It would be more than a third of an integer operation's time.
    """
    from triton.runtime.interpreter import interpreter_builder

    options = interpreter_builder.options
    if not options.debug:
        interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)


def remember_types() -> None:
    """Keeps what follows from a type alone, which is asked for with every operation."""
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    numpy_types: dict[str, Any] = {}
    find_numpy_type = interpreter._get_np_dtype

    def numpy_type(type: Any) -> Any:
        scalar = type.scalar
        found = numpy_types.get(scalar.name)
        if found is None:
            found = numpy_types[scalar.name] = find_numpy_type(scalar)
        return found

    @functools.cache
    def describe(shape: tuple[int, ...]) -> tuple[tl.constexpr, tl.tuple]:
        return tl.constexpr(math.prod(shape)), tl.tuple([tl.constexpr(size) for size in shape])

    def init(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = describe(tuple(type.shape) if type.is_block() else ())

    broadcast_both = TritonSemantic.broadcast_impl_value

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        # Shapes are kept once: the same shape is the same object.
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast_both(self, lhs, rhs)

    interpreter._get_np_dtype = numpy_type
    tl.tensor.__init__ = init
    TritonSemantic.broadcast_impl_value = broadcast
