"""One batch of a PLE layer, brought into a plan that was made before.

Plans are compiled for their caps, so a batch is padded up to a power of two of tokens and of
requests: a process meets a few dozen plans, whatever batches come.
"""

from __future__ import annotations

import dataclasses
import functools

import torch

from gramary import ple
from gramary.errors import GramaryError
from gramary.layer.geometry import PLEGeometry
from gramary.layer.state import PLEState

MIN_TOKENS = 16


@dataclasses.dataclass(frozen=True, eq=False)
class LayerBatch:
    """The inputs of one run.

    Attributes:
        geometry: the layer's sizes.
        residual: D [T, S, H].
        key: D [T, S, H].
        value: D [T, H].
        query_start_loc: int32 [R+1].
        state: of the R requests; its windows are written.
        longest: tokens of the longest request where that is known without reading the device.
    """

    geometry: PLEGeometry
    residual: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    query_start_loc: torch.Tensor
    state: PLEState
    longest: int | None

    def run(
        self,
        *,
        k_norm_weight: torch.Tensor,
        q_norm_weight: torch.Tensor,
        u_norm_weight: torch.Tensor,
        conv_weight: torch.Tensor,
        add_residual: bool,
    ) -> torch.Tensor:
        """Returns a new tensor [T, S, H]: the contribution, or residual + contribution.

        Raises:
            ArgumentError: as `ple.bind`, with nothing done.
            SlotError: as `PLEState.begin_run`, with nothing done.
        """
        plan = planned(self._caps())
        caps, state = plan.caps, self.state
        residual = padded(self.residual, caps.max_tokens).contiguous()
        count = functools.partial(torch.full, (1,), dtype=torch.int32, device=residual.device)
        binding = ple.bind(
            plan,
            scratch=torch.empty(plan.scratch_nbytes, dtype=torch.uint8, device=residual.device),
            residual=residual,
            key=padded(self.key, caps.max_tokens),
            value=padded(self.value, caps.max_tokens),
            k_norm_weight=k_norm_weight,
            q_norm_weight=q_norm_weight,
            u_norm_weight=u_norm_weight,
            conv_weight=conv_weight,
            query_start_loc=padded(self.query_start_loc, caps.max_seqs + 1),
            start_positions=padded(state.positions, caps.max_seqs),
            state_slot_ids=padded(state.slots, caps.max_seqs),
            num_seqs=count(state.num_requests),
            num_tokens=count(self.residual.shape[0]),
            conv_state=state.conv_state,
            out=torch.empty_like(residual),
            add_residual=add_residual,
        )
        num_tokens = self.residual.shape[0]
        # From here on windows are written; nothing above has changed anything.
        before = state.begin_run(self.query_start_loc, num_tokens)
        try:
            return ple.run(binding, eps=self.geometry.eps)[:num_tokens]
        except GramaryError:
            # It refuses before it writes.
            state.refuse_run(before)
            raise

    def _caps(self) -> ple.Caps:
        """Returns the caps of the smallest plan that this batch fits."""
        geometry, state = self.geometry, self.state
        promise = 1 + state.max_speculative_tokens
        is_decode = self.longest is not None and self.longest <= promise
        return ple.Caps(
            device=self.residual.device,
            mode="decode" if is_decode else "mixed",
            max_tokens=max(next_power_of_two(self.residual.shape[0]), MIN_TOKENS),
            max_seqs=next_power_of_two(state.num_requests),
            max_state_slots=2**63 - 1,
            max_speculative_tokens=state.max_speculative_tokens,
            streams=geometry.streams,
            hidden_size=geometry.hidden_size,
            kernel_size=geometry.kernel_size,
            dilation=geometry.dilation,
            dtype=self.residual.dtype,
        )


def padded(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Returns a tensor with `size` rows, those behind the given ones arbitrary."""
    if tensor.shape[0] == size:
        return tensor
    longer = tensor.new_empty(size, *tensor.shape[1:])
    longer[: tensor.shape[0]] = tensor
    return longer


def next_power_of_two(count: int) -> int:
    """Returns the smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


@functools.lru_cache(maxsize=256)
def planned(caps: ple.Caps) -> ple.Plan:
    """Returns a plan, made once for equal caps."""
    return ple.plan(caps)
