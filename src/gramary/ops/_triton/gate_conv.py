"""GPU backend of the PLE state operations: Triton kernels behind the backend interface.

Mode "decode" is one launch (`step.py`). Mode "mixed" is three: the gates of all rows (`gate.py`),
the outputs whose taps all lie inside the run (`conv.py`), and each request's head and window
(`window.py`). An export is one (`export.py`). All sizes of a launch are the plan's; what a batch
really holds is read by the kernels.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import torch

from gramary.ops._triton.conv import conv_kernel
from gramary.ops._triton.export import export_kernel
from gramary.ops._triton.gate import gate_kernel
from gramary.ops._triton.launch import WIDE, Kernel, PinnedTensor
from gramary.ops._triton.scratch import ScratchLayout
from gramary.ops._triton.step import step_kernel
from gramary.ops._triton.tuning import Tuning
from gramary.ops._triton.window import head_kernel
from gramary.ops.gate_conv import Binding, Caps

# Where a kernel's parameter comes from in a binding.
TENSORS = {
    "p_residual": "residual",
    "p_key": "key",
    "p_value": "value",
    "p_k_norm": "k_norm_weight",
    "p_q_norm": "q_norm_weight",
    "p_u_norm": "u_norm_weight",
    "p_conv_weight": "conv_weight",
    "p_query_start_loc": "query_start_loc",
    "p_start_positions": "start_positions",
    "p_slot_ids": "state_slot_ids",
    "p_num_seqs": "num_seqs",
    "p_num_tokens": "num_tokens",
    "p_state": "conv_state",
    "p_scratch": "scratch",
    "p_out": "out",
}
STRIDES = {"key_stride": "key", "value_stride": "value", "slot_stride": "conv_state"}
INTEGERS = {
    "p_query_start_loc": torch.int32,
    "p_num_seqs": torch.int32,
    "p_num_tokens": torch.int32,
    "p_offsets": torch.int32,
    "p_status": torch.int32,
    "p_start_positions": torch.int64,
    "p_slot_ids": torch.int64,
    "p_slots": torch.int64,
}
# Bytes that addresses and strides of a binding must be a multiple of to be read in wide pieces.
ALIGNMENT = 32


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A plan's compiled kernels.

    Attributes:
        runs: the launches of a run, in order, by (is_aligned, add_residual).
        exports: the launch of an export, by is_aligned; its grid is for one entry a request.
    """

    runs: dict[tuple[bool, bool], tuple[Kernel, ...]]
    exports: dict[bool, Kernel]


def scratch_nbytes(caps: Caps) -> int:
    """Returns the bytes of a plan's scratch."""
    return ScratchLayout.of(caps).nbytes


def prepare(caps: Caps, tuning: Tuning | None = None) -> Prepared:
    """Compiles a plan's kernels for its device: with and without alignment, and the residual.

    Args:
        caps: the plan's caps.
        tuning: block sizes; None takes the measured ones.
    """
    tuning = tuning or Tuning.of(caps)
    run_kernels = (
        (step_kernel,) if caps.mode == "decode" else (gate_kernel, conv_kernel, head_kernel)
    )
    launches = tuning.launches(caps)

    def compiled(function: Any, is_aligned: bool, add: bool) -> Kernel:
        launch = launches[function.__name__]
        constants = constants_of(caps) | launch.constants | {"ADD": add}
        pins = pins_of(caps, is_aligned)
        return Kernel.prepare(
            function,
            pins,
            constants,
            num_warps=launch.num_warps,
            grid=launch.grid,
            **launch.options,
        )

    with _on(caps.device):
        runs = {
            (is_aligned, add): tuple(compiled(each, is_aligned, add) for each in run_kernels)
            for is_aligned in (True, False)
            for add in (True, False)
        }
        exports = {
            is_aligned: compiled(export_kernel, is_aligned, False) for is_aligned in (True, False)
        }
    return Prepared(runs, exports)


def constants_of(caps: Caps) -> dict[str, Any]:
    """Returns what a kernel may know when it is compiled: nothing of a batch's size."""
    return {
        "S": caps.streams,
        "H": caps.hidden_size,
        "K": caps.kernel_size,
        "DILATION": caps.dilation,
        "STATE_LENGTH": caps.state_length,
        "CAPACITY": caps.state_capacity,
        "IS_DECODE": caps.mode == "decode",
        # Launches overlap from Hopper on: a kernel is set up while the one before it runs.
        "PDL": caps.device.type == "cuda" and torch.cuda.get_device_capability(caps.device) >= (9,),
    }


def pins_of(caps: Caps, is_aligned: bool) -> dict[str, Any]:
    """Returns stand-ins for every run-time parameter, of which Triton learns no more than that."""
    tensors: dict[str, Any] = {
        name: PinnedTensor(INTEGERS.get(name, caps.dtype), is_aligned and name not in INTEGERS)
        for name in (*TENSORS, *INTEGERS)
    }
    tensors["p_scratch"] = PinnedTensor(torch.uint8, True)
    strides = dict.fromkeys(STRIDES, WIDE if is_aligned else WIDE + 1)
    parts = dict.fromkeys(("flags_at", "history_at"), WIDE)
    sizes = dict.fromkeys(("T", "R", "num_entries", "has_status"), 3)
    return tensors | strides | parts | sizes | {"num_slots": WIDE + 1, "eps": 0.5}


def run(binding: Binding, eps: float) -> None:
    """Writes `binding.out` and the windows of the live requests."""
    prepared = binding.plan.prepared
    assert isinstance(prepared, Prepared)
    values = values_of(binding) | {"eps": eps}
    with _on(binding.caps.device):
        for kernel in prepared.runs[is_aligned(binding), binding.add_residual]:
            kernel.launch(values)


def export_checkpoint(
    binding: Binding, offsets: torch.Tensor, slots: torch.Tensor, status: torch.Tensor | None
) -> None:
    """Writes window checkpoints and their statuses; all three are [max_seqs, n]."""
    prepared = binding.plan.prepared
    assert isinstance(prepared, Prepared)
    num_entries = slots.shape[1]
    if num_entries == 0:
        return
    values = values_of(binding) | {
        "p_offsets": offsets,
        "p_slots": slots,
        "p_status": offsets if status is None else status,
        "has_status": int(status is not None),
        "num_entries": num_entries,
    }
    kernel = prepared.exports[is_aligned(binding)]
    with _on(binding.caps.device):
        kernel.launch(values, grid=kernel.grid * num_entries)


def values_of(binding: Binding) -> dict[str, Any]:
    """Returns the run-time arguments that a binding decides, by the name of the parameter."""
    values: dict[str, Any] = {name: getattr(binding, field) for name, field in TENSORS.items()}
    for name, field in STRIDES.items():
        values[name] = getattr(binding, field).stride(0)
    layout = ScratchLayout.of(binding.caps)
    return values | {
        "num_slots": binding.conv_state.shape[0],
        "T": binding.caps.max_tokens,
        "R": binding.caps.max_seqs,
        "flags_at": layout.flags_at,
        "history_at": layout.history_at,
    }


def is_aligned(binding: Binding) -> bool:
    """Returns whether wide pieces of every tensor start where the GPU can read them at once."""
    itemsize = binding.caps.dtype.itemsize
    wide = [field for name, field in TENSORS.items() if name not in INTEGERS]
    return not any(
        [getattr(binding, field).data_ptr() % 16 for field in wide]
        + [getattr(binding, field).stride(0) * itemsize % ALIGNMENT for field in STRIDES.values()]
    )


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Makes a CUDA device the current one, and the caller's again afterwards."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
