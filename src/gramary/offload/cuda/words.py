"""Words of the shared memory as kernels read and write them.

The memory is the host's, registered with CUDA; a kernel holds addresses in it as int64. Where the
fields lie is said by `gramary.native.ring`.

Source of the fence and of what it orders: PTX ISA 8.x, sections "Memory Consistency Model" and
"membar/fence" (`fence.acq_rel.sys` is cumulative over what the thread has observed).
"""

import triton
import triton.language as tl
from triton import knobs

_IS_INTERPRETED: tl.constexpr = tl.constexpr(bool(knobs.runtime.interpret))


@triton.jit
def load_int64(address):
    """The 64-bit word at an address, read anew."""
    return tl.load(address.to(tl.pointer_type(tl.int64)), volatile=True)


@triton.jit
def load_int64_if(address, is_wanted):
    """The 64-bit word at an address, read anew, or 0 unread."""
    return tl.load(address.to(tl.pointer_type(tl.int64)), mask=is_wanted, other=0, volatile=True)


@triton.jit
def load_int32(address):
    """The 32-bit word at an address, read anew."""
    return tl.load(address.to(tl.pointer_type(tl.int32)), volatile=True)


@triton.jit
def store_int64(address, value):
    """Writes a 64-bit word."""
    tl.store(address.to(tl.pointer_type(tl.int64)), value)


@triton.jit
def store_int32(address, value):
    """Writes a 32-bit word."""
    tl.store(address.to(tl.pointer_type(tl.int32)), value)


@triton.jit
def behind_fence(value):
    """An int64, given back once all that was written or seen before is so for the CPUs too."""
    if _IS_INTERPRETED:
        return value
    else:
        return tl.inline_asm_elementwise(
            "fence.acq_rel.sys; mov.b64 $0, $1;", "=l,l", [value],
            dtype=tl.int64, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def is_last_program(p_count):
    """True in the launch's last program to come here, which then sees what the others wrote.

    `p_count` is an int64 of this launch's own, zero before it and after it.
    """
    tl.debug_barrier()
    num_before = tl.atomic_add(p_count, 1, sem="acq_rel", scope="gpu")
    is_last = num_before == tl.num_programs(0) - 1
    if is_last:
        tl.store(p_count, 0)
    return is_last
