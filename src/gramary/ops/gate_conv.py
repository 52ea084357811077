"""The stateful part of a PLE layer (gate, norms, dilated convolution, window) as one operation.

This file holds what every backend of the operation shares: the shape of a plan (`Caps`), what is
bound to it (`Binding`), and the outcomes of an export. The checks, the public functions and the
choice of the backend are in `gramary.ple`; the truth is in `ops/reference/gate_conv.py`.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, ClassVar, Protocol

import torch

from gramary.errors import ArgumentError, UnsupportedError
from gramary.process.bound import ProcessBound

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MODES = ("decode", "mixed")

# Inclusive ranges of the geometry that every backend is tested for.
RANGES = {
    "max_tokens": (1, 2**31 - 1),
    "max_seqs": (1, 2**31 - 1),
    "max_state_slots": (1, 2**63 - 1),
    "max_speculative_tokens": (0, 2**16),
    "streams": (1, 8),
    "hidden_size": (1, 8192),
    "kernel_size": (2, 8),
    "dilation": (1, 8),
}


class ExportStatus(enum.IntEnum):
    """Outcome of one entry of `export_checkpoint`: the first that matches, in `EXPORT_ORDER`."""

    DISABLED = 0
    WRITTEN = 1
    NOT_LIVE = 2
    BAD_OFFSET = 3
    OUT_OF_POOL = 4
    DUPLICATE = 5
    LIVE_SLOT = 6


EXPORT_ORDER = (
    ExportStatus.DISABLED,
    ExportStatus.NOT_LIVE,
    ExportStatus.OUT_OF_POOL,
    ExportStatus.LIVE_SLOT,
    ExportStatus.DUPLICATE,
    ExportStatus.BAD_OFFSET,
    ExportStatus.WRITTEN,
)


@dataclasses.dataclass(frozen=True)
class Caps:
    """What a plan is made for: the layer's geometry and the most a batch may hold.

    Attributes:
        device: where every tensor of a binding lies; "cuda" means the current CUDA device.
        mode: "decode" promises at most 1 + max_speculative_tokens tokens a request, "mixed"
            promises nothing.
        max_tokens: most tokens of one batch, padding included.
        max_seqs: most requests of one batch.
        max_state_slots: most slots of a pool; the pool's own number is read at run time.
        max_speculative_tokens: most drafts that may be rejected at once; the same in all plans
            over one pool.
        streams: residual streams S.
        hidden_size: width H of one stream.
        kernel_size: taps K of the convolution.
        dilation: positions between two taps.
        dtype: dtype of activations, weights and windows: bfloat16, float16 or float32.

    Raises:
        ArgumentError: a field is out of the range in `RANGES`, or of the wrong kind.
        UnsupportedError: the device is not on this machine.
    """

    device: torch.device
    mode: str
    max_tokens: int
    max_seqs: int
    max_state_slots: int
    max_speculative_tokens: int
    streams: int
    hidden_size: int
    kernel_size: int
    dilation: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", _resolved(self.device))
        if self.mode not in MODES:
            raise ArgumentError(f"mode: expected one of {', '.join(MODES)}, got {self.mode!r}")
        if self.dtype not in DTYPES:
            raise ArgumentError(f"dtype: expected bfloat16, float16 or float32, got {self.dtype}")
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ArgumentError(
                    f"{name}: expected an integer from {low} to {high}, got {value!r}"
                )

    @property
    def channels(self) -> int:
        """Channels C of the convolution: streams * hidden_size."""
        return self.streams * self.hidden_size

    @property
    def state_length(self) -> int:
        """Columns of a window that the next token needs: dilation * (kernel_size - 1)."""
        return self.dilation * (self.kernel_size - 1)

    @property
    def state_capacity(self) -> int:
        """Columns of a slot: enough that no column is both read and written by one verification.

        A request of q <= 1 + max_speculative_tokens tokens touches state_length + q consecutive
        positions, which are distinct modulo this capacity.
        """
        return self.state_length + self.max_speculative_tokens + 1

    @property
    def max_decode_tokens(self) -> int:
        """Most tokens of a request that keeps the promise of mode "decode"."""
        return 1 + self.max_speculative_tokens


def _resolved(device: torch.device | str) -> torch.device:
    """Returns a device with its number, or raises the error that says what it should be."""
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device: expected cpu or cuda, got {device!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError(f"device: expected one that is here, got {device}; no CUDA GPU is")
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device


class Backend(Protocol):
    """What a module must offer to carry out the operation on one kind of device.

    Calls come in this order: `scratch_nbytes` and `prepare` once per plan, then `run` and
    `export_checkpoint` any number of times on checked bindings. After `prepare`, nothing is
    compiled.
    """

    def scratch_nbytes(self, caps: Caps) -> int:
        """Returns the bytes of scratch that bindings of such a plan need."""

    def prepare(self, caps: Caps) -> object:
        """Compiles everything; what it returns is `plan.prepared`."""

    def run(self, binding: Binding, eps: float) -> None:
        """Writes `binding.out` and the windows of the live requests."""

    def export_checkpoint(
        self,
        binding: Binding,
        offsets: torch.Tensor,
        slots: torch.Tensor,
        status: torch.Tensor | None,
    ) -> None:
        """Writes window checkpoints; all three tensors arrive as [max_seqs, n]."""


@dataclasses.dataclass(frozen=True)
class Plan(ProcessBound):
    """A compiled plan; `gramary.ple.plan` makes it.

    Attributes:
        caps: what the plan is made for.
        scratch_nbytes: bytes of the scratch tensor that a binding needs.
        backend: the module that carries the plan out.
        prepared: what that module keeps of its compilation.
        debug_checks: find two live requests in one slot before every run (reads the device).
    """

    remedy: ClassVar[str] = (
        "what it compiled is this process's; make it there with gramary.ple.plan(caps)"
    )

    caps: Caps
    scratch_nbytes: int
    backend: Backend = dataclasses.field(repr=False)
    prepared: object = dataclasses.field(repr=False, default=None)
    debug_checks: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Binding(ProcessBound):
    """Checked tensors of one plan; `gramary.ple.bind` makes it and says what each one is.

    `spans` are the pieces of memory the tensors occupy, kept for the checks of later arguments.
    """

    remedy: ClassVar[str] = (
        "it stands for tensors at their addresses; bind the tensors there with gramary.ple.bind()"
    )

    plan: Plan
    scratch: torch.Tensor
    residual: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    k_norm_weight: torch.Tensor
    q_norm_weight: torch.Tensor
    u_norm_weight: torch.Tensor
    conv_weight: torch.Tensor
    query_start_loc: torch.Tensor
    start_positions: torch.Tensor
    state_slot_ids: torch.Tensor
    num_seqs: torch.Tensor
    num_tokens: torch.Tensor
    conv_state: torch.Tensor
    out: torch.Tensor
    add_residual: bool
    spans: tuple[Any, ...] = dataclasses.field(repr=False, default=())

    @property
    def caps(self) -> Caps:
        """The caps of the plan this is bound to."""
        return self.plan.caps
