"""Every kernel compiles for GPUs old and new, without a GPU (the interpreter accepts more)."""

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
from gramary.ops._triton.decode import decode_kernel
from gramary.ops._triton.embed import embed_kernel, lookup_kernel
from gramary.ops._triton.hash import ngram_ids_kernel
from gramary.ops._triton.tiles import Format, tile_for

capability = int(sys.argv[1])
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32",
         torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64"}
HASH = {"NGRAM": 3, "HEADS": 8, "HAS_HISTORY": True}
SIZES = ("T", "R", "tokens_per_request", "num_steps")
POINTERS = {"p_tokens": "*i32", "p_query_start_loc": "*i32", "p_history": "*i64",
            "p_constants": "*i64", "p_error": "*i64", "p_row_ids": "*i64", "p_positions": "*i64"}


def compile_kernel(kernel, constants, out_type, num_warps):
    constants = {name: constants[name] for name in kernel.arg_names if name in constants}
    types = {name: "i64" for name in kernel.arg_names}
    types |= dict.fromkeys(SIZES, "i32")
    types |= POINTERS | {"scale": "fp32", "p_out": "*" + out_type}
    types |= {name: "constexpr" for name in constants}
    source = ASTSource(
        kernel,
        signature={name: types[name] for name in kernel.arg_names},
        constexprs=constants,
        attrs={(kernel.arg_names.index("p_out"),): [["tt.divisibility", 16]]},
    )
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": num_warps})
    assert compiled.asm["cubin"]
    return compiled.asm["ptx"]


compile_kernel(ngram_ids_kernel, {**HASH, "HAS_ERROR": True, "BT": 8, "BH": 16}, "i64", 4)
codecs = [Codec("fp8", 160, 0.5), Codec("nvfp4", 160, 0.5), Codec("bf16", 160), Codec("fp32", 10)]
for codec in codecs if capability >= 90 else codecs[:1]:
    is_whole = capability >= 90 and codec.name != "fp32"
    for dtype in (torch.bfloat16, torch.uint8) if is_whole else (torch.bfloat16,):
        width = codec.row_dim if dtype.is_floating_point else codec.row_bytes
        form = Format.of(codec, torch.empty(1, width, dtype=dtype), 0)
        tile = tile_for(1 << 20)
        constants = {**HASH, **form.constants(), **tile.constants(form), "HAS_POSITIONS": True}
        kernels = [embed_kernel]
        if codec.name == "fp8":
            kernels += [lookup_kernel, decode_kernel]
        for kernel in kernels:
            ptx = compile_kernel(kernel, constants, TYPES[form.out_dtype], tile.num_warps)
            if codec.name == "fp8" and dtype == torch.bfloat16:
                assert "st.global.v4.b32" in ptx, "16 bytes of output a store"
                assert "ld.global.v2.b32" in ptx, "8 bytes of a row a load"
                assert "e4m3" not in ptx, "no native fp8"
print("compiled")
"""


@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles(capability: int) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    # A run may take minutes on a machine that is busy and has compiled nothing before.
    result = run_child(SCRIPT, capability, env=environment, timeout=600)
    assert result.stdout == "compiled\n", result.stderr[-2000:]
