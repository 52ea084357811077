"""The kernels of the PLE operations compile without a GPU, and only once a geometry."""

import os
from pathlib import Path

import pytest
from children import run_child

SCRIPT = """
import contextlib
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel
from triton.runtime import JITFunction, driver


class AbsentGpu:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", capability, 32)


capability = int(sys.argv[1])
driver.set_active(AbsentGpu())
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_capability = lambda device=None: divmod(capability, 10)
torch.cuda.device = lambda device: contextlib.nullcontext()
CompiledKernel._init_handles = lambda self: None

compiled = []
compile_one = JITFunction._do_compile


def counted(self, *args, **kwargs):
    kernel = compile_one(self, *args, **kwargs)
    assert kernel.asm["cubin"]
    compiled.append(kernel.name)
    return kernel


JITFunction._do_compile = counted

from gramary import ple

sizes = {"max_tokens": 64, "max_seqs": 4, "max_state_slots": 8}
larger = {"max_tokens": 2048, "max_seqs": 1, "max_state_slots": 1 << 40}
shape = {"streams": 2, "hidden_size": 200, "kernel_size": 3, "dilation": 2}
for mode in sys.argv[2:]:
    fixed = {"device": "cuda:0", "mode": mode, "max_speculative_tokens": 1, "dtype": torch.bfloat16}
    ple.plan(ple.Caps(**fixed, **shape, **sizes))
    num_compiled = len(compiled)
    ple.plan(ple.Caps(**fixed, **shape, **larger))
    assert len(compiled) == num_compiled, compiled[num_compiled:]
print(*sorted(set(compiled)))
"""


@pytest.mark.parametrize(
    ("capability", "kernels"),
    [(80, {"decode": "step"}), (90, {"mixed": "conv export gate head"})],
)
def test_kernels_compile_once_a_geometry(
    capability: int, kernels: dict[str, str], tmp_path: Path
) -> None:
    """Other numbers of tokens, requests and slots find every kernel of a geometry compiled.

    A process of its own, since in this one Triton interprets.
    """
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = run_child(SCRIPT, capability, *kernels, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in " ".join(kernels.values()).split():
        assert f"{name}_kernel" in done.stdout
