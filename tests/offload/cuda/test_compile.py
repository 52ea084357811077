"""The connector's kernels compile for GPUs old and new, without a GPU."""

import os

import pytest
from children import run_child

SCRIPT = """
import sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gramary.model.codecs import Codec
from gramary.offload.cuda.flags import wait_kernel
from gramary.offload.cuda.request import request_kernel
from gramary.offload.cuda.take import _IN_PLACE, settle_kernel, take_kernel
from gramary.ops._triton.tiles import Format, tile_for

capability = int(sys.argv[1])
TYPES = {"p_tokens": "*i32", "p_query_start_loc": "*i32", "scale": "fp32",
         "p_out": "*bf16"}


def compile_kernel(kernel, constants, num_warps=4):
    constants = {name: constants[name] for name in kernel.arg_names if name in constants}
    types = {name: "*i64" if name.startswith("p_") else "i64" for name in kernel.arg_names}
    types |= TYPES | {name: "constexpr" for name in constants}
    aligned = [name for name in ("p_out",) if name in kernel.arg_names]
    attrs = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(
        kernel, signature={name: types[name] for name in kernel.arg_names}, constexprs=constants,
        attrs=attrs,
    )
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": num_warps})
    assert compiled.asm["cubin"]
    return compiled.asm["ptx"]


def is_last_store_fenced(ptx):
    # Whether a fence for the whole system stands between the last store and the one before.
    lines = [line.strip() for line in ptx.splitlines()]
    stores = [i for i, line in enumerate(lines) if "st.global" in line]
    return any("fence.acq_rel.sys" in line for line in lines[stores[-2] : stores[-1]])


hashed = {"NGRAM": 3, "HEADS": 8, "HAS_HISTORY": True, "BT": 8, "BH": 16}
for num_tables in (0, 2):
    ptx = compile_kernel(request_kernel, hashed | {"NUM_TABLES": num_tables})
    if num_tables:
        # The number, behind ids and states.
        assert is_last_store_fenced(ptx)
for codec in (Codec("fp8", 160, 0.5), Codec("nvfp4", 160, 0.5)):
    form = Format.of(codec, torch.empty(1, 160, dtype=torch.bfloat16), 0)
    for is_copied, is_stream in ((False, True), (False, False), (True, False)):
        tile = (tile_for(1) if is_copied else _IN_PLACE).constants(form)
        flags = {"IS_STREAM": is_stream, "HAS_IDS": is_stream, "IS_COPIED": is_copied,
                 "RELEASES": True}
        ptx = compile_kernel(take_kernel, flags | form.constants() | tile, tile["num_warps"])
        if not is_copied:
            # Who reads a host lane's released number finds the flag lowered.
            assert is_stream or is_last_store_fenced(ptx)
            atomic = ptx.index("atom.")
            asking = [line for line in ptx[:atomic].splitlines() if "ld.volatile" in line]
            assert asking and all("@" in line for line in asking), "one program asks, not each"
for is_stream, checks in ((True, True), (False, True), (False, False)):
    flags = {"IS_STREAM": is_stream, "CHECKS": checks, "RELEASES": True}
    ptx = compile_kernel(settle_kernel, flags, 1)
    assert is_last_store_fenced(ptx) != is_stream
assert "ld.volatile" in compile_kernel(wait_kernel, {}, 1)
print("compiled")
"""


@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles(capability: int) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    result = run_child(SCRIPT, capability, env=environment, timeout=600)
    assert result.stdout == "compiled\n", result.stderr[-3000:]
