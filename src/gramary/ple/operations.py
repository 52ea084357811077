"""plan, bind, run and export_checkpoint."""

from __future__ import annotations

import math

import torch

from gramary.arguments import require_type
from gramary.errors import ArgumentError, SlotError
from gramary.ops.gate_conv import Binding, Caps, Plan
from gramary.ple.backend import backend_for
from gramary.ple.checks import check_binding, check_export
from gramary.settings import Settings, chosen_settings


def plan(caps: Caps, *, settings: Settings | None = None, backend: str | None = None) -> Plan:
    """Returns a plan whose operations never compile, never allocate and never read the device.

    (On the CPU there is nothing to compile, and temporaries are allocated.)

    Args:
        caps: geometry and the most a batch may hold.
        settings: `debug_checks` finds two live requests in one slot before every run, at the
            price of a synchronisation; None takes the environment's settings.
        backend: "cpu" or "triton" instead of the one the device implies; for tests.

    Returns:
        The plan; `plan.scratch_nbytes` bytes of scratch are needed by each of its bindings that
        may run or export at the same time as another.

    Raises:
        ArgumentError: caps or settings are none.
        UnsupportedError: no backend for this device.
        DependencyError: the backend needs a package that is missing.
    """
    require_type("caps", caps, Caps)
    settings = chosen_settings(settings)
    chosen = backend_for(caps, backend)
    return Plan(
        caps=caps,
        scratch_nbytes=chosen.scratch_nbytes(caps),
        backend=chosen,
        prepared=chosen.prepare(caps),
        debug_checks=settings.debug_checks,
    )


def bind(
    plan: Plan,
    *,
    scratch: torch.Tensor,
    residual: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    k_norm_weight: torch.Tensor,
    q_norm_weight: torch.Tensor,
    u_norm_weight: torch.Tensor,
    conv_weight: torch.Tensor,
    query_start_loc: torch.Tensor,
    start_positions: torch.Tensor,
    state_slot_ids: torch.Tensor,
    num_seqs: torch.Tensor,
    num_tokens: torch.Tensor,
    conv_state: torch.Tensor,
    out: torch.Tensor,
    add_residual: bool = False,
) -> Binding:
    """Returns a binding: tensors checked once, to be run many times.

    All tensors lie on `plan.caps.device`; floating ones have `plan.caps.dtype` (D below). S, H,
    C = S*H and K are the caps' streams, hidden_size, channels and kernel_size. The contents may
    change between runs, the metadata too: one captured CUDA graph serves changing batches.

    Args:
        scratch: uint8 [>= plan.scratch_nbytes], 16-byte aligned.
        residual: D [max_tokens, S, H], contiguous: the streams that query the gate.
        key: D [max_tokens, S, H]; tokens may be any stride apart (a slice of a projection).
        value: D [max_tokens, H]; tokens may be any stride apart.
        k_norm_weight: D [C], applied as 1 + w to the key; likewise the next two.
        q_norm_weight: D [C], for the residual.
        u_norm_weight: D [C], for the gated value.
        conv_weight: D [C, K], oldest tap first.
        query_start_loc: int32 [max_seqs + 1]; request i has the tokens from element i to
            element i + 1, starting with 0, never decreasing up to element num_seqs.
        start_positions: int64 [max_seqs]; position of each request's first token, >= 0.
        state_slot_ids: int64 [max_seqs]; a slot outside the pool marks a request as not live.
        num_seqs: int32 [1]; requests of this batch; elements beyond are never read.
        num_tokens: int32 [1]; tokens of this batch, padding included; those beyond are neither
            read nor written, whatever query_start_loc says.
        conv_state: D [slots, state_capacity, C], slots <= max_state_slots, contiguous but for
            the stride between slots.
        out: D [max_tokens, S, H], contiguous; may be exactly `residual` with add_residual.
        add_residual: write residual + contribution instead of the contribution.

    Raises:
        ArgumentError: a tensor has the wrong shape, dtype, device, layout or alignment, or
            `out`, `conv_state` or `scratch` shares memory with another tensor; the message names
            the argument.
    """
    tensors = {
        "scratch": scratch,
        "residual": residual,
        "key": key,
        "value": value,
        "k_norm_weight": k_norm_weight,
        "q_norm_weight": q_norm_weight,
        "u_norm_weight": u_norm_weight,
        "conv_weight": conv_weight,
        "query_start_loc": query_start_loc,
        "start_positions": start_positions,
        "state_slot_ids": state_slot_ids,
        "num_seqs": num_seqs,
        "num_tokens": num_tokens,
        "conv_state": conv_state,
        "out": out,
    }
    require_type("plan", plan, Plan)
    require_type("add_residual", add_residual, bool)
    spans = check_binding(plan, tensors, add_residual)
    return Binding(plan=plan, add_residual=add_residual, spans=spans, **tensors)


def run(binding: Binding, *, eps: float) -> torch.Tensor:
    """Runs one batch: writes `binding.out` and the windows of its live requests.

    Request i is live if i < num_seqs and its slot lies in the pool. Its q tokens stand at the
    positions from `start_positions[i]` on; it reads the window's columns of the state_length
    positions before (those below 0 are zero and never read) and writes those of its newest
    min(q, state_capacity) positions. Tokens of other requests, tokens behind the last request
    and, in mode "decode", those of a request with more than 1 + max_speculative_tokens tokens
    get a contribution of zero, and nothing else is read or written for them. Tokens from
    num_tokens on are untouched. Two live requests in one slot give undefined windows and
    outputs for the two, and nothing else.

    Args:
        binding: what `bind` returned.
        eps: the norms' epsilon, finite and at least 0.

    Returns:
        `binding.out`, valid on the current stream of the binding's device.

    Raises:
        SlotError: with `settings.debug_checks`, two live requests name one slot.
        ArgumentError: binding or eps is none, or, on the CPU, the metadata contradict each other.
    """
    require_type("binding", binding, Binding)
    if type(eps) not in (int, float) or not 0 <= eps < math.inf:
        raise ArgumentError(f"eps: expected a finite number of at least 0, got {eps!r}")
    if binding.plan.debug_checks:
        _refuse_shared_slots(binding)
    binding.plan.backend.run(binding, eps)
    return binding.out


def export_checkpoint(
    binding: Binding,
    *,
    offsets: torch.Tensor,
    slots: torch.Tensor,
    status: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Writes windows from inside the last run into slots of the pool.

    Entry (i, j) asks for the window of request i as it stood after `offsets[i, j]` tokens of the
    run; it goes to slot `slots[i, j]`, whose other columns become zero. Call it after `run` and
    before the next `run` on this scratch, with scratch, key, value, metadata and the live slots
    untouched in between. The rules are checked on the device at every call and every replay;
    an entry that fails one is skipped before a byte is written.

    Args:
        binding: what was run.
        offsets: int32 [max_seqs] or [max_seqs, n], on the binding's device.
        slots: int64 of the same shape; below 0 means no export.
        status: int32 of the same shape or None; every element receives an `ExportStatus`, the
            first that matches in `ops.gate_conv.EXPORT_ORDER`:
            DISABLED, slot < 0; NOT_LIVE, request i is not live; OUT_OF_POOL, the pool has no
            such slot; LIVE_SLOT, it is the slot of a live request, with or without tokens;
            DUPLICATE, another entry of a live request names it too (all of them are skipped);
            BAD_OFFSET, outside 1 .. tokens run; else WRITTEN.

    Returns:
        `status`. A checkpoint may be published only once its status was read as WRITTEN.

    Raises:
        ArgumentError: wrong shape, dtype, device or layout, or shared memory.
    """
    require_type("binding", binding, Binding)
    check_export(binding, offsets, slots, status)
    columns = None if status is None else _as_columns(status)
    binding.plan.backend.export_checkpoint(
        binding, _as_columns(offsets), _as_columns(slots), columns
    )
    return status


def _as_columns(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.unsqueeze(1) if tensor.ndim == 1 else tensor


def _refuse_shared_slots(binding: Binding) -> None:
    num_seqs = min(int(binding.num_seqs), binding.caps.max_seqs)
    num_slots = binding.conv_state.shape[0]
    owners: dict[int, int] = {}
    for request, slot in enumerate(binding.state_slot_ids[: max(num_seqs, 0)].tolist()):
        if 0 <= slot < num_slots and owners.setdefault(slot, request) != request:
            raise SlotError(
                f"state_slot_ids: requests {owners[slot]} and {request} both name slot {slot}; "
                "every live request needs a slot of its own"
            )
